"""A scenario as `simulator.lockstep.lockstep_run.LockstepCase`, and its outcome in words and numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios.assembly.replica_parts import ReplicaParts, build
from scenarios.assembly.workloads import build_workload, check_content
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.engine import UNSAID
from scenarios.schema.scenario import Scenario
from simulator.goes_with import DEVICE
from simulator.lockstep.canary import Canary
from simulator.lockstep.lockstep_limits import LockstepVerdict
from simulator.lockstep.lockstep_run import LockstepCase
from simulator.lockstep.step_errors import LockstepErrors, StepErrors
from simulator.memory.blocks import BlockLedger
from simulator.timing.executor import Predicted
from simulator.workload import Workload


def lockstep_case(scenario: Scenario, swap_s_per_block: float | None = None) -> LockstepCase:
    """Return the scenario as a lockstep runs it. Raises InputError for what one device cannot be.

    `swap_s_per_block` is the time that the device takes to move a block, where that was measured.
    """
    if scenario.num_replicas != 1:
        raise scenario.error("replicas", "a lockstep has one replica", "--set replicas=1")
    for key in ("tensor_parallel", "pipeline_parallel"):
        if getattr(scenario.hardware, key) != 1:
            raise scenario.error(f"hardware.{key}", "a lockstep has one GPU", f"--set hardware.{key}=1")
    for key in ("max_queued_requests", *UNSAID):
        if getattr(scenario.engine, key) is not None:
            raise scenario.error(f"engine.{key}", "a lockstep serves every request", f"--set engine.{key}=null")
    workload = build_workload(scenario)
    check_content(scenario, workload)
    return case_of(workload, build(scenario, [DEVICE]), swap_s_per_block)


def case_of(workload: Workload, parts: ReplicaParts, swap_s_per_block: float | None = None) -> LockstepCase:
    """Return the parts of a scenario as a lockstep runs them: blocks have ids, also where counts would do."""
    swap_s = parts.swap_s_per_block if swap_s_per_block is None else swap_s_per_block
    return LockstepCase(
        workload=workload,
        make_policy=parts.make_policy,
        kv=parts.kv,
        make_predicted=lambda: Predicted(parts.cost, swap_s),
        make_blocks=parts.make_blocks_by_id,
        caches_prefixes=parts.make_blocks is not BlockLedger,
    )


def measured_swap_s(profile: Path | None) -> float | None:
    """Return the seconds to move a block, from measured.json beside a profile; None where it does not say."""
    if profile is None:
        return None
    try:
        seen = json.loads((profile.parent / "measured.json").read_text(encoding="utf-8"))
        return float(seen["swap_s_per_block"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def profile_canary(profile: Path | None) -> Canary | None:
    """Return the canary that a profile was measured beside; None where it does not say."""
    if profile is None:
        return None
    try:
        document = json.loads(profile.read_text(encoding="utf-8"))
        return Canary.of_json(next(source["canary"] for source in document["sources"] if "canary" in source))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def lockstep_json(found: LockstepErrors, verdict: LockstepVerdict, device: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of `--json`; errors are fractions, 0.04 is 4 %."""
    return {
        "verdict": verdict.outcome,
        "reasons": list(verdict.reasons),
        "steps": found.all.steps,
        "flagged": found.flagged,
        "stalled": found.stalled,
        "plans_equal": found.plans_equal,
        **_prefixed(found.all),
        "noise_floor_mape": found.floor,
        "noise_floor_drift": found.drift_floor,
        "drift": found.drift,
        "canary": found.canary,
        "in_ratio": None
        if found.in_ratio is None
        else {**_prefixed(found.in_ratio.all), "drift": found.in_ratio.drift},
        "regimes": {
            name: {
                "steps": each.steps,
                **_prefixed(each),
                "noise_floor_mape": each.floor,
                "drift": each.drift,
                "control": each.control,
            }
            for name, each in found.regimes.items()
        },
        "device": dict(device),
    }


def _prefixed(errors: StepErrors) -> dict[str, float]:
    return {"step_mape": errors.mape, "step_median": errors.median, "step_p95": errors.p95, "step_bias": errors.bias}


def priced_elsewhere(scenario: Scenario, source: str, device: str) -> str | None:
    """Say that the scenario's step times were not measured on this machine, and what measures them here.

    None where the scenario names a profile by its path: whoever does that has measured it. `source` is the scenario as
    the command line names it.
    """
    cost = scenario.cost
    if isinstance(cost, ProfileCostConfig) and cost.path is not None:
        return None
    by_hand = (
        f"`batchlab calibrate measure --scenario {source} --device {device} --steps-only --out runs/measured`, then"
        " `batchlab calibrate fit --from-steps runs/measured/rows.jsonl.gz --out runs/measured/profile.json`, then"
        f" `batchlab lockstep {source} --device {device} --profile runs/measured/profile.json`"
    )
    at_once = (
        "In a clone, `make lockstep` measures this CPU, fits a profile, and runs this command with it. "
        if source == "lockstep-cpu"
        else ""
    )
    return (
        f"The step times are those of the scenario's cost (kind: {cost.kind}), which is another machine's: no profile"
        f" of this one was given. {at_once}By hand: {by_hand}."
    )


def verdict_words(found: LockstepErrors, verdict: LockstepVerdict, elsewhere: str | None = None) -> str:
    """Return the verdict in a few sentences. `elsewhere` is said of step times that are another machine's."""
    floor = "" if found.floor is None else f", two executions of the same steps differ by {found.floor:.1%}"
    plans = "plans equal" if found.plans_equal else "plans differ"
    said = [f"{plans}; step MAPE {found.all.mape:.1%}{floor}; busy time drifts by {found.drift:+.1%}."]
    if found.in_ratio is not None:
        said.append(
            f"The canary's time has changed by {found.canary:+.1%} since the profile was measured. Relative to fixed "
            f"steps of each regime, timed then and now, the MAPE is {found.in_ratio.all.mape:.1%} and the drift "
            f"{found.in_ratio.drift:+.1%}."
        )
    if found.flagged:
        said.append(
            f"{found.flagged} of {found.of} steps do not count, {found.stalled} of them because they are stalls."
        )
    outcome = {"within": "Within the limits", "not within": "Not within the limits", "cannot tell": "Cannot tell"}
    reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
    said.append(f"{outcome[verdict.outcome]}{reasons}.")
    said += [f"{remark[0].upper()}{remark[1:]}." for remark in verdict.remarks]
    said += [elsewhere] if elsewhere is not None else []
    return " ".join(said)
