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

    @property
    def most_of_decode(self) -> int:
        """Blocks that a decode takes at most; 0 where that is not known."""

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
    """A `simulator.plan.GroupsTrial`.

    As long as there are blocks for all that the requests could take at most, nobody counts what they take.
    """

    __slots__ = ("_asking", "_spare", "_trial", "_uncounted")

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._trial: Trial | None = None
        self._spare = asking.blocks.num_free
        self._uncounted: list[tuple[RequestState, int]] = []
        if not asking.most_of_decode:
            self._trial = Trial(asking.blocks)

    def take(self, request: RequestView, num_tokens: int) -> bool:
        """See `GroupsTrial.take`."""
        asking = self._asking
        assert isinstance(request, RequestState)
        if request.is_decoding and asking.quiet_steps(request) > 0:
            return True
        if self._trial is None:
            most = asking.most_of_decode
            if num_tokens > 1:  # what it drops may make room for a state that is saved on the way
                most += asking.blocks.needed(asking.asked(request, request.num_computed_tokens, num_tokens))
            if most <= self._spare:
                self._spare -= most
                self._uncounted.append((request, num_tokens))
                return True
        return self._take(self._counted(), request, num_tokens)

    def leave(self, request: RequestView) -> None:
        """See `GroupsTrial.leave`."""
        self._counted().leave(request.row)

    def _counted(self) -> Trial:
        """The exact count, with what was taken so far."""
        if self._trial is None:
            self._trial = Trial(self._asking.blocks)
            for request, num_tokens in self._uncounted:
                self._take(self._trial, request, num_tokens)
        return self._trial

    def _take(self, trial: Trial, request: RequestState, num_tokens: int) -> bool:
        asked = self._asking.asked(request, request.num_computed_tokens, num_tokens)
        return trial.take(asked, self._asking.processed(request))
