"""Which inputs move the answer, and by how much: a scenario run again with one input changed at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.timing.expert_parallel import LINK_EFFICIENCY

LINKS_GB_S = (16.0, 38.4)
"""What collectives may get of PCIe 5: LLMServingSim's configuration, and the 60 % of it that we assume elsewhere."""

FIGURES = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")


@dataclass(frozen=True, slots=True)
class Change:
    """One input, changed: a name to read, and the overrides that do it, as `--set` takes them."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a change on FIGURES: signed fractions of the unchanged run's."""

    change: Change
    moves: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A scenario's summary, and what each change does to it."""

    scenario: str
    summary: dict[str, Any]
    effects: tuple[Effect, ...]


def sensitivity(source: str, changes: Sequence[Change]) -> Sensitivity:
    """Run the scenario as it is and with each change. A change that the scenario cannot have raises InputError."""
    plain = run(load(source)).summary
    effects = []
    for change in changes:
        moved = run(load(source, change.overrides)).summary
        effects.append(Effect(change, tuple(moved[name] / plain[name] - 1.0 for name in FIGURES)))
    return Sensitivity(source, plain, tuple(effects))


def changes_for(source: str) -> list[Change]:
    """The inputs of step costs and memory, each a way off; what a scenario does not have is left out."""
    scenario = load(source)
    blocks = _blocks(scenario)
    found = [
        Change("10 % fewer KV blocks", (f"hardware.num_gpu_blocks={round(0.9 * blocks)}",)),
        Change("10 % more KV blocks", (f"hardware.num_gpu_blocks={round(1.1 * blocks)}",)),
        Change("no padding to CUDA graphs", ("cost.cuda_graphs=false",)),
        Change("skew of contexts left out", ("cost.skew=false",)),
        Change("no prefix cache", ("engine.enable_prefix_caching=false",)),
        Change("synchronous scheduling, at the same host", ("engine.async_scheduling=false", *_same_host(scenario))),
    ]
    if scenario.cost.takes_host(scenario):
        found += [
            Change("nothing for the host", ("host={step_s: 0, per_seq_s: 0}",)),
            Change("a host of 1 ms a step", ("host.step_s=0.001",)),
            Change("synchronous scheduling, and its host", ("engine.async_scheduling=false",)),
        ]
    if scenario.hardware.tensor_parallel > 1:
        found.append(Change("all-reduce left out", ("cost.all_reduce=false",)))
    if scenario.hardware.enable_expert_parallel:
        found.append(Change("each rank has all experts, and its own steps", ("hardware.enable_expert_parallel=false",)))
        for gb_s in LINKS_GB_S:
            link = f"hardware.gpu={{base: {scenario.resolve_gpu().name}, link_gb_s: {gb_s / LINK_EFFICIENCY:.6g}}}"
            found.append(Change(f"links of {gb_s:g} GB/s", (link,)))
    return [change for change in found if _possible(source, change)]


def _same_host(scenario: Scenario) -> tuple[str, ...]:
    host = scenario.resolve_host()
    return (f"host={{step_s: {host.step_s!r}, per_seq_s: {host.per_seq_s!r}}}",)


def _blocks(scenario: Scenario) -> int:
    from scenarios.assembly.replica_parts import build

    return build(scenario).kv.num_gpu_blocks


def _possible(source: str, change: Change) -> bool:
    try:
        load(source, change.overrides)
    except InputError:
        return False
    return True
