"""vLLM as a server: its host and front end by version, and the flags of `vllm serve`.

Flags are those of vLLM 0.33, vllm/engine/arg_utils.py. Servers without figures of their own take these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from simulator.front_end import FrontEnd
from simulator.servers import Command, Deployment, Server
from simulator.timing.host import Host

SYNC = Host(1.3e-3, 72e-6, "vLLM 0.12: TPOT less kernels, closed-loop runs on H100 (aiconfigurator's silicon samples)")
LIKE_SYNC = replace(SYNC, source="assumed: as vLLM 0.12, which is synchronous too")
_ASYNC = Host(0.3e-3, 15e-6, "vLLM 0.15 to 0.18: ITL less kernels on H100 servers, 10 to 20 us a request")
_ASYNC_SINCE_0_19 = Host(0.3e-3, 0.0, "vLLM 0.19: assumed; two servers in process leave nothing for a request")
FRONT_END = FrontEnd(5.8e-3, 67e-6)  # vLLM 0.15 over HTTP: what TTFT has beyond the engine, flat over its percentiles
LIKE_VLLM_0_15 = "assumed: as vLLM 0.15"


def command_line(start: str, options: Mapping[str, object]) -> str:
    """A command with its options: True is a flag alone; None and False leave an option out."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return " ".join([start, *[name if value is True else f"{name} {value}" for name, value in given.items()]])


def vllm_serve(policy: object, at: Deployment, *, priority: bool = False) -> Command:
    """Write `vllm serve` for any policy: a parameter that it does not have gets no flag."""
    chunks = [] if _value(policy, "enable_chunked_prefill") is not False else ["--no-enable-chunked-prefill"]
    remarks = ["vLLM v1 recomputes, and swaps nothing"] if _swaps(policy, at) else []
    return Command(_flags(policy, at, chunks, priority), remarks)


def serve_before_v1(policy: object, at: Deployment) -> Command:
    """Write `vllm serve` of a version before v1: it swaps, and computes prompts in chunks only where it is told so."""
    chunked = bool(_value(policy, "enable_chunked_prefill"))
    text = _flags(policy, at, ["--enable-chunked-prefill" if chunked else "--no-enable-chunked-prefill"], False)
    if _swaps(policy, at):
        text += f" --swap-space {at.swap_space_gib:g}"
    return Command(text, [f"prompts in {'chunks' if chunked else 'steps of their own'}: vLLM before v1"])


def _flags(policy: object, at: Deployment, chunks: Sequence[str], priority: bool) -> str:
    value = partial(_value, policy)
    options = {
        "--tensor-parallel-size": at.tensor_parallel if at.tensor_parallel > 1 else None,
        "--max-num-seqs": str(value("max_num_seqs")),
        "--max-num-batched-tokens": str(value("max_num_batched_tokens")),
        "--gpu-memory-utilization": f"{at.gpu_memory_utilization:g}",
        "--enable-prefix-caching" if at.enable_prefix_caching else "--no-enable-prefix-caching": True,
        "--block-size": at.block_size if at.block_size != 16 else None,
        **dict.fromkeys(chunks, True),
        "--scheduling-policy": "priority" if priority or value("order") == "priority" else None,
        "--long-prefill-token-threshold": value("long_prefill_token_threshold") or None,
        "--enable-expert-parallel": at.enable_expert_parallel,
        "--async-scheduling": value("async_scheduling") is True,
        "--no-async-scheduling": value("async_scheduling") is False,  # left out: as the version does by default
    }
    return command_line(f"vllm serve {at.model}", options)


def _value(policy: object, key: str) -> object:
    return getattr(policy, key, None)


def _swaps(policy: object, at: Deployment) -> bool:
    return bool(at.swap_space_gib) and _value(policy, "preemption_mode") in ("swap", "auto")


VLLM = Server(
    FRONT_END,
    "public runs of vLLM 0.15 over HTTP",
    synchronous=SYNC,
    asynchronous=_ASYNC_SINCE_0_19,
    asynchronous_before=((0, 19), _ASYNC),
    overlaps_since=(0, 14),  # vllm-project/vllm, pull request 27614
    command=vllm_serve,
)
LIKE_VLLM = Server(FRONT_END, LIKE_VLLM_0_15, asynchronous=Host(0.3e-3, 0.0, "assumed: as vLLM 0.19"))
"""The server of a policy whose file names none: as quick as vLLM, without a command."""
LIKE_VLLM_0_12 = Server(FRONT_END, LIKE_VLLM_0_15, synchronous=LIKE_SYNC, overlaps_since=None)
