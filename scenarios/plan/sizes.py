"""Tensor parallel beside the GPUs of a plan: a larger GPU may do alone what another does in a group of four."""

from collections.abc import Sequence

from scenarios.assembly.replica_parts import build
from scenarios.plan.candidate import GPU, POLICY, TENSOR_PARALLEL, make_candidate
from scenarios.schema.cost.linear import LinearCostConfig
from scenarios.schema.scenario import Scenario
from scenarios.studies.study_axes import Setting
from simulator.errors import InputError

_MOST = 8  # GPUs of a replica: those of one machine
_ABOVE = 4  # times the smallest size that fits
_HELD = ("max_num_seqs", "max_num_batched_tokens")


def with_sizes(base: Scenario, settings: Sequence[Setting]) -> tuple[list[Setting], list[str]]:
    """Vary tensor parallel in settings that name a GPU and no size, over what fits; and note it, with what is held.

    The sizes are 1, 2, 4, 8, from the smallest that fits to four times it, and the scenario's own. A linear cost, which
    knows no GPU, and a fleet of groups, in which each has its own, stay as they are.
    """
    open_ = [setting for setting in settings if GPU in setting and TENSOR_PARALLEL not in setting]
    if not open_ or base.fleet is not None or isinstance(base.cost, LinearCostConfig):
        return list(settings), []
    fitting: dict[str, list[int]] = {}
    found: list[Setting] = []
    for setting in settings:
        if GPU not in setting or TENSOR_PARALLEL in setting:
            found.append(setting)
            continue
        gpu = str(setting[GPU])
        if gpu not in fitting:
            fitting[gpu] = _fitting(base, setting) or [base.hardware.tensor_parallel]
        found += [{GPU: setting[GPU], TENSOR_PARALLEL: size, **setting} for size in fitting[gpu]]
    varied = ", ".join(f"{gpu} {' '.join(map(str, sizes))}" for gpu, sizes in fitting.items())
    notes = [f"tensor parallel is varied over what fits ({varied}); --vary {TENSOR_PARALLEL}=N holds it"]
    given = {key for setting in settings for key in setting}
    held = [f"{key} {base.engine.parameter(key)}" for key in _HELD if f"engine.{key}" not in given]
    policy = [] if POLICY in given else [f"policy {base.engine.policy}"]
    notes.append(f"held as in the scenario: {', '.join([*policy, *held])}; --vary or --find config tries others")
    return found, notes


def _fitting(base: Scenario, setting: Setting) -> list[int]:
    """Return the sizes of a replica on a GPU that are tried, ascending."""
    own = base.hardware.tensor_parallel
    sizes: list[int] = []
    for size in base.resolve_model().tensor_parallel_choices():
        if size > max(_MOST, own) or (size != own and sizes and size > _ABOVE * sizes[0]):
            continue
        if size == own or size & (size - 1) == 0:
            try:
                build(make_candidate(base, {**setting, TENSOR_PARALLEL: size}).scenario)
            except InputError:  # it does not fit, or has no measured kernels
                continue
            sizes.append(size)
    return sizes
