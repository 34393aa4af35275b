"""SGLang's flags of data-parallel attention and of expert parallelism: of all ranks together, where a key is of one.

Rules are those of python/sglang/srt/server_args.py (`_handle_data_parallelism`, `_handle_gpu_memory_settings`) and of
`_resolve_max_num_reqs` of the model runner. The experts of each rank are priced as whole ones, which `--ep-size` says;
without it SGLang cuts each expert into as many parts.
"""

from collections.abc import Mapping
from typing import Any, Final

from simulator.errors import InputError
from simulator.servers import Flag

_SHARES: Final = "hardware.enable_expert_parallel"
_RANKS: Final = "replicas"
_TENSOR: Final = "hardware.tensor_parallel"
_ATTENTION: Final = "engine.enable_dp_attention"  # these two keys only `joined` and `written` know
_EXPERTS: Final = "engine.ep_size"
_CONSERVATIVENESS: Final = "engine.schedule_conservativeness"
_EASED: Final = 0.3
_CHUNK: Final = "engine.chunked_prefill_size"
_SEQS: Final = "engine.max_num_seqs"

FLAGS: Final = (
    Flag("--dp-size --data-parallel-size --dp", _RANKS),
    Flag("--enable-dp-attention", _ATTENTION, default=False, means=True),
    Flag("--ep-size --expert-parallel-size --ep", _EXPERTS, default=1),
)


def ranks_of(found: Mapping[str, Any]) -> int:
    """Return the ranks whose attention is data-parallel: 1 without the flag, which one rank alone has no use for."""
    return int(found.get("ranks") or 1) if found.get(_ATTENTION) else 1


def reserved_mib(found: Mapping[str, Any], graphs: int) -> float:
    """Return the memory that ranks take beside the KV cache for CUDA graphs of up to `graphs` requests, MiB."""
    ranks = ranks_of(found)
    return 0.0 if ranks == 1 else graphs * ranks * (4.5 if graphs > 300 else 3.0)


def joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the keys of one rank from the flags of all. InputError where ranks do not divide the GPUs."""
    ranks, gpus = ranks_of(found), int(found.get(_TENSOR) or 1)
    if ranks == 1:
        return {_SHARES: True} if int(found.get(_EXPERTS) or 1) > 1 else {}
    if gpus % ranks:
        raise InputError(f"--enable-dp-attention: {ranks} ranks do not divide {gpus} GPUs (--tp-size)")
    eased = round(_EASED * found.get(_CONSERVATIVENESS, 1.0), 5)
    divided = [_CHUNK, *([_SEQS] if _SEQS in found["said"] else [])]
    return {
        _SHARES: True,
        _TENSOR: gpus // ranks,
        _CONSERVATIVENESS: eased,
        **{key: max(1, found[key] // ranks) for key in divided if found[key] > 0},
    }


def written(values: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the flags' values of all ranks together from the keys of one."""
    ranks, gpus = values.get(_RANKS) or 1, values[_TENSOR]
    if not values[_SHARES]:
        return {}
    if ranks == 1:
        return {_EXPERTS: gpus}
    made = {_ATTENTION: True, _EXPERTS: gpus * ranks, _TENSOR: gpus * ranks}
    made[_CONSERVATIVENESS] = values[_CONSERVATIVENESS] / _EASED
    return made | {key: values[key] * ranks for key in (_CHUNK, _SEQS)}
