"""Aborts of a replica with a connector: a request may leave while its load is under way."""

from simulator.engine.completion import Completion
from simulator.engine.connector.groups import ConnectedGroups
from simulator.engine.connector.plans import Holding
from simulator.engine.connector.request import ConnectedRequest
from simulator.engine.late_results import LateResults
from simulator.engine.speculative.replica import DroppingAborts
from simulator.engine.state import ReplicaState
from simulator.request_state import LOADING, RequestState


class ConnectedAborts(DroppingAborts):
    """Takes requests out of where they wait for their loads, too."""

    __slots__ = ("_held",)

    def __init__(self, state: ReplicaState, completion: Completion, late: LateResults | None, held: Holding) -> None:
        super().__init__(state, completion, late)
        self._held = held

    def _count(self, live: RequestState) -> None:
        if live.status is not LOADING:
            super()._count(live)

    def _take_out(self, live: RequestState, now_s: float) -> bool:
        blocks = self._state.blocks
        if isinstance(blocks, ConnectedGroups) and isinstance(live, ConnectedRequest):
            blocks.ends(live)
        if live.status is not LOADING or not isinstance(live, ConnectedRequest):
            return super()._take_out(live, now_s)
        del self._held.lives[live]
        self._state.blocks.free(live.row, live.num_blocks)
        return False
