"""KV memory of several groups as a policy sees it."""

from typing import Protocol

from simulator.engine.state import ReplicaState
from simulator.memory.group_tables import Reach
from simulator.memory.grouped import GroupedBlocks, Hit, Trial
from simulator.plan import GroupsTrial, StateRules
from simulator.request import RequestView
from simulator.request_state import WAITING, RequestState


class Asking(Protocol):
    """What the memory of a replica is asked for, for a request's next tokens."""

    blocks: GroupedBlocks

    def processed(self, live: RequestState) -> int:
        """Tokens of a request that have been computed for sure."""

    def asked(self, live: RequestState, computed: int, tokens: int, loaded: int = 0) -> Reach:
        """The next tokens of a request behind those computed, of which some are loaded."""

    def quiet_steps(self, live: RequestState) -> int:
        """Decode steps of a request before one that may take or free blocks; 0: this one may."""

    def quiet_run(self) -> int:
        """Decode steps of all, this one included, before one that may change a table of any."""


class GroupsView:
    """A `simulator.plan.KVGroups`: what a policy may ask of the memory."""

    __slots__ = ("_asking", "_state", "states")

    def __init__(self, state: ReplicaState, asking: Asking) -> None:
        self._state = state
        self._asking = asking
        self.states: StateRules | None = asking.blocks.states

    def _hit(self, request: RequestView) -> tuple[RequestState, Hit]:
        live = self._state.waiting_request(request)
        return live, self._asking.blocks.hit(self._state.requests[live.row], live.num_tokens)

    def hit(self, request: RequestView) -> tuple[int, int]:
        """See `KVGroups.hit`."""
        _, hit = self._hit(request)
        return hit.tokens, hit.junction

    def junction(self, request: RequestView) -> int:
        """See `KVGroups.junction`."""
        return self._asking.blocks.junctions.get(request.row, 0)

    def blocks_needed(self, request: RequestView, num_tokens: int, loaded: int = 0, *, whole: bool = False) -> int:
        """See `KVGroups.blocks_needed`."""
        assert isinstance(request, RequestState)
        blocks = self._asking.blocks
        live, hit, computed = request, None, request.num_computed_tokens
        if request.status is WAITING:
            live, hit = self._hit(request)
            computed = hit.tokens + loaded
        asked = self._asking.asked(live, computed, 0 if whole else num_tokens, loaded)
        if whole:
            asked = asked._replace(end=live.num_tokens)
        return blocks.needed(asked, hit, whole=whole)

    def blocks_lacking(self, request: RequestView) -> int:
        """See `KVGroups.blocks_lacking`."""
        assert isinstance(request, RequestState)
        asked = self._asking.asked(request, request.num_computed_tokens, 0)
        return self._asking.blocks.needed(asked._replace(end=request.num_tokens), whole=True)

    def trial(self) -> GroupsTrial:
        """See `KVGroups.trial`."""
        return RunningTrial(self._asking)

    def quiet_steps(self) -> int:
        """See `KVGroups.quiet_steps`."""
        return self._asking.quiet_run()


class RunningTrial:
    """A `simulator.plan.GroupsTrial`."""

    __slots__ = ("_asking", "_trial")

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._trial = Trial(asking.blocks)

    def take(self, request: RequestView, num_tokens: int) -> bool:
        """See `GroupsTrial.take`."""
        assert isinstance(request, RequestState)
        if request.is_decoding and self._asking.quiet_steps(request) > 0:
            return True
        asked = self._asking.asked(request, request.num_computed_tokens, num_tokens)
        return self._trial.take(asked, self._asking.processed(request))

    def leave(self, request: RequestView) -> None:
        """See `GroupsTrial.leave`."""
        self._trial.leave(request.row)
