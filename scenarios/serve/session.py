"""A scenario as a run in progress, and the run folder that it leaves."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from scenarios.assembly.fleet_parts import build_fleet, build_flow_control, build_link, build_router
from scenarios.assembly.workloads import BY_CLASS
from scenarios.runs.result import Result
from scenarios.runs.runner import sum_up
from scenarios.runs.storage.run_folder import ARRIVALS
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.traces import read_trace
from scenarios.traces.native_writer import write_native
from simulator.simulate import Run
from simulator.traffic.live import Listener, LiveTraffic


class Session:
    """The replicas of a scenario, whose requests come from outside; its own workload says how long answers are."""

    def __init__(self, scenario: Scenario, *, log_decisions: bool = False) -> None:
        self.scenario = scenario
        self.fleet = build_fleet(scenario)
        self._log_decisions = log_decisions

    def start(self, listener: Listener) -> LiveTraffic:
        """Begin the run."""
        scenario = self.scenario
        return LiveTraffic(
            [built.replicas for built in self.fleet],
            listener,
            router=build_router(scenario),
            signal_interval_s=scenario.routing.interval_s,
            log_decisions=self._log_decisions,
            front_end=scenario.resolve_front_end(),
            slo=scenario.resolve_slo(),
            link=build_link(scenario),
            flow_control=build_flow_control(scenario),
        )

    def finish(self, live: LiveTraffic, folder: Path, target: Path) -> Result:
        """End the run and write its folder, which will be `target`: the recorded requests are the scenario's workload.

        `batchlab run` on the `scenario.yaml` in it writes the same bytes.
        """
        records = live.finish()
        workload = live.workload()
        write_native(workload, folder / ARRIVALS)
        scenario = on_recorded(self.scenario, target / ARRIVALS, workload.class_names)
        notes = read_trace(folder / ARRIVALS).notes
        done = Run(records, live.decisions(), live.delays_s())
        result = sum_up(scenario, workload, self.fleet, done, notes)
        result.write(folder)
        return result


def on_recorded(scenario: Scenario, arrivals: Path, classes: Collection[str]) -> Scenario:
    """Make the recorded requests the scenario's workload; of what the scenario says by class, keep only `classes`."""
    data = scenario.model_dump(exclude_unset=True)
    data["workload"] = {"trace": {"path": str(arrivals.absolute()), "format": "native"}}
    for section, key in (("slo", "classes"), *(("engine", key) for key in BY_CLASS)):
        by_class: dict[str, Any] | None = (data.get(section) or {}).get(key)
        if by_class:
            data[section] = {**data[section], key: {name: by_class[name] for name in by_class if name in classes}}
    return load(data, check_files=False)
