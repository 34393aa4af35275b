"""What real servers add around the kernels of a step, engine by engine: the host and the front end, as data.

Both have one form (`simulator.timing.host.Host`, `simulator.front_end.FrontEnd`). Where nothing was published, the
figures are vLLM's and say so: the form is known to fit, the numbers are a default to be replaced by one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.front_end import FrontEnd
from simulator.timing.host import Host

ASYNC_BY_DEFAULT_SINCE = (0, 14)
"""vLLM schedules asynchronously unless told otherwise since 0.14.0 (vllm-project/vllm, pull request 27614)."""

_SYNC = Host(1.3e-3, 72e-6, "vLLM 0.12: TPOT less kernels, closed-loop runs on H100 (aiconfigurator's silicon samples)")
_ASYNC = Host(0.3e-3, 15e-6, "vLLM 0.15 to 0.18: ITL less kernels on H100 servers, 10 to 20 us a request")
_ASYNC_SINCE_0_19 = Host(0.3e-3, 0.0, "vLLM 0.19: assumed; two servers in process leave nothing for a request")
_OVERLAPPED = Host(0.3e-3, 0.0, "assumed: as vLLM 0.19")
_LIKE_SYNC = Host(_SYNC.step_s, _SYNC.per_seq_s, "assumed: as vLLM 0.12, which is synchronous too")

_VLLM_FRONT_END = FrontEnd(5.8e-3, 67e-6)
"""vLLM 0.15 over HTTP: what TTFT has beyond the engine, flat over its percentiles."""


@dataclass(frozen=True, slots=True)
class Server:
    """What an engine adds: to a step (`host`), and between its clients and a step (`front_end`).

    `host` is that of the newest version with the scheduling it has by default; `front_end_source` says where the
    latter's figures come from. `otherwise` is the host where `async_scheduling` is not what it is by default
    (`overlaps`); None where the engine schedules one way only.
    """

    host: Host
    front_end: FrontEnd
    front_end_source: str
    overlaps: bool = True
    otherwise: Host | None = None


_VLLM = Server(_ASYNC_SINCE_0_19, _VLLM_FRONT_END, "public runs of vLLM 0.15 over HTTP")
_LIKE_VLLM = Server(_OVERLAPPED, _VLLM_FRONT_END, "assumed: as vLLM 0.15")
_SERVERS: Mapping[str, Server] = {
    "vllm": _VLLM,
    "chunked_prefill": _VLLM,
    "vllm_v0": Server(_LIKE_SYNC, _VLLM_FRONT_END, "assumed: as vLLM 0.15", overlaps=False),
    "tgi": Server(_LIKE_SYNC, _VLLM_FRONT_END, "assumed: as vLLM 0.15", overlaps=False),
    "sglang": Server(
        Host(
            0.31e-3,
            0.0,
            "SGLang with overlap, one request at a time before a mocked device: TPOT of 2.94 ms where the device took"
            " 2.63 (tenstorrent/tt-inference-server, issue 3560); what each request adds is not published",
        ),
        FrontEnd(6.6e-3, 67e-6),
        "the same run over HTTP: TTFT of 9.54 ms less a step; for each running request assumed as vLLM 0.15",
        otherwise=_LIKE_SYNC,
    ),
    "tensorrt_llm": Server(
        Host(
            _SYNC.step_s,
            _SYNC.per_seq_s,
            "TensorRT-LLM without overlap: assumed as vLLM 0.12, 5.9 ms at 64 at once; with overlap an iteration is of"
            " 4.6 ms there, and the host works for about as long as the GPU (NVIDIA/TensorRT-LLM, issue 13957)",
        ),
        _VLLM_FRONT_END,
        "assumed: as vLLM 0.15",
        overlaps=False,
        otherwise=Host(
            0.58e-3,
            0.0,
            "TensorRT-LLM with overlap, Llama-3.1-8B fp8 on B200 at 64 at once: 580 us of idle GPU an iteration"
            " (NVIDIA/TensorRT-LLM, issue 13957)",
        ),
    ),
}


def server(policy: str) -> Server:
    """What the engine that has this policy adds; an unknown one, as a user's own, is taken to be as quick as vLLM."""
    return _SERVERS.get(policy, _LIKE_VLLM)


def host_of(policy: str, version: str | None = None, async_scheduling: bool | None = None) -> Host:
    """What the host adds to a step of this engine.

    `version` is vLLM's, as "0.15"; None for others, and for the newest. `async_scheduling` None stands for what that
    version does by default. A newer version told to be synchronous is as slow as the last that was so by default, an
    older one told to be asynchronous as quick as the first that is. Other engines do as their policy does by default.
    """
    known = server(policy)
    if known is not _VLLM:
        told = async_scheduling is not None and async_scheduling != known.overlaps
        return known.otherwise if told and known.otherwise is not None else known.host
    numbers = None if version is None else tuple(int(part) for part in version.split(".")[:2])
    is_async = async_scheduling
    if is_async is None:
        is_async = numbers is None or numbers >= ASYNC_BY_DEFAULT_SINCE
    if not is_async:
        return _SYNC
    return _ASYNC_SINCE_0_19 if numbers is None or numbers >= (0, 19) else _ASYNC


def host_source(policy: str, host: Host) -> str:
    """Where figures of this engine's host come from; '' for those of nobody but the scenario.

    By the figures, so that a scenario which spells out its engine's own says the same of them.
    """
    known = server(policy)
    of_engine = (_ASYNC_SINCE_0_19, _ASYNC, _SYNC) if known is _VLLM else (known.host, known.otherwise)
    for each in of_engine:
        if each is not None and (each.step_s, each.per_seq_s) == (host.step_s, host.per_seq_s):
            return each.source
    return ""


def front_end_source(policy: str, front_end: FrontEnd) -> str:
    """The same of its front end."""
    known = server(policy)
    return known.front_end_source if known.front_end == front_end else ""
