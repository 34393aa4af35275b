"""Requests that have come, as a workload: what a trace of them holds."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from simulator.request import Request
from simulator.workload import Workload


def recorded(requests: Sequence[Request], patience_s: Mapping[int, float]) -> Workload:
    """The requests in order of arrival; `patience_s` has the rows whose clients left before the end of the answer."""

    def integers(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(request, name) for request in requests], dtype=np.int64)

    names = {name: index for index, name in enumerate(dict.fromkeys(r.class_name for r in requests))}
    patience = np.full(len(requests), nan)
    for row, seconds in patience_s.items():
        patience[row] = seconds
    sessions = [request.session_id for request in requests]
    content = [request.content for request in requests]
    return Workload(
        arrival_s=np.array([request.arrival_s for request in requests], dtype=np.float64),
        input_tokens=integers("input_tokens"),
        output_tokens=integers("output_tokens"),
        max_tokens=integers("max_tokens"),
        priority=integers("priority"),
        class_index=np.array([names[request.class_name] for request in requests], dtype=np.int64),
        class_names=tuple(names),
        request_ids=[request.request_id for request in requests],
        session_ids=sessions if any(name is not None for name in sessions) else None,
        content=content if any(each is not None for each in content) else None,
        patience_s=patience if patience_s else None,
    )
