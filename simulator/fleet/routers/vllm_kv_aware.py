"""The KV-aware router of vLLM's production stack: whoever is named for the first part of the prompt.

The rule is that of its `KvawareRouter`, with the look-up of LMCache's controller (`simulator/fleet/production_stack.py`
says where they are). It takes the replica of the first chunk, though another may have more. What counts for its
threshold is the end of the last chunk that names this replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.production_stack import LookingUp

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class VllmKvAware(LookingUp):
    """Give a request to the replica that is named for the first chunk of its prompt, if it has enough of the prompt.

    That is all but `kv_aware_threshold` tokens. Otherwise it goes by its session, or to the replica that was sent the
    fewest requests in the last `stats_window_s`, the first of equals. Loads do not matter.
    """

    reads_loads: ClassVar = False

    kv_aware_threshold: Annotated[
        int, Ge(0), Le(10**9), Unit("tokens"), doc("tokens of a prompt that may be missing where it is sent")
    ] = 2000

    def _by_prompt(self, ends: Mapping[int, int], request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad | None:
        first = next(iter(ends), None)
        if first is None or ends[first] < request.input_tokens - self.kv_aware_threshold:
            return None
        return replicas.by_number[first]
