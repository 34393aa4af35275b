"""Decisions of batchlab's own parts on cases of vLLM's features, in the format of the recorded files.

`decide` makes what a case describes, lets the parts that a run is put together from decide, and returns what the
records hold. It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from simulator.fleet.routers.vllm_dp import VllmDp
from simulator.fleet.signals import Signals
from simulator.fleet.windows import Signal

Case = Mapping[str, Any]


def balancer(case: Case) -> list[int]:
    """The rank that each request goes to, through the one API server of the case."""
    server, count = case["client_index"], case["engines"]
    router = VllmDp(api_server_count=case["client_count"])
    taken_by: Any = SimpleNamespace(below=lambda servers: server)
    router.start(taken_by)
    signals = Signals([idle(rank) for rank in range(count)])
    rows: dict[str, int] = {}
    chosen = []
    for event, *told in case["events"]:
        if event == "snapshot":
            signals.show([Signal(*seen) for seen in told[0]])
        elif event == "finish":
            router.ended(rows[told[0]])
        else:
            name, rank = told
            row = rows[name] = len(rows)
            request: Any = SimpleNamespace(row=row)
            if rank is None:
                load = router.choose(request, signals.replicas)
                signals.sent(load)
                rank = load.index
            else:
                router.sent(row, server, rank)
            chosen.append(rank)
    return chosen


def idle(rank: int) -> Any:
    """An idle rank. Its use of KV is shown as a share: it has one block."""
    return SimpleNamespace(
        index=rank, group="default", max_num_seqs=1, num_blocks=1, num_waiting=0, num_running=0, used_blocks=0
    )


DECIDES: Mapping[str, Callable[[Case], Any]] = {"balancer": balancer}


def decide(kind: str, case: Case) -> Any:
    """What batchlab decides on a case of this kind. ValueError for a kind whose feature it does not have."""
    if kind not in DECIDES:
        raise ValueError(f"batchlab decides no cases of the kind {kind!r}; it decides: {', '.join(DECIDES)}")
    return DECIDES[kind](case)
