"""The results of steps with a connector: blocks that a step wrote come free, then tokens, then transfers."""

from collections import deque

from simulator.engine.completion import Completion
from simulator.engine.connector.blocks import Connected
from simulator.engine.connector.groups import ConnectedGroups
from simulator.engine.connector.plans import ConnectedPlans, Holding
from simulator.engine.connector.protocol import Arrivals, Connector
from simulator.engine.speculative.results import VerifyResults
from simulator.engine.speculative.step import VerifyStep
from simulator.engine.state import ReplicaState
from simulator.request_state import FINISHED, LOADING
from simulator.results.records import Status


class ConnectedStep(VerifyStep):
    """A step that may compute nothing. `arrivals` are told with its results."""

    __slots__ = ("arrivals",)

    arrivals: Arrivals


class ConnectedResults(VerifyResults):
    """Takes in the results of steps, in order (`Scheduler.update_from_output`, vLLM 0.33)."""

    __slots__ = ("_blocks", "_connector", "_fenced", "_held", "_launched", "_now_s", "_processed")

    def __init__(
        self,
        state: ReplicaState,
        completion: Completion,
        plans: ConnectedPlans,
        connector: Connector,
        blocks: Connected,
        held: Holding,
    ) -> None:
        super().__init__(state, completion, plans)
        self._connector = connector
        self._blocks = blocks
        self._held = held
        self._now_s = 0.0
        self._launched = self._processed = 0  # steps that computed tokens
        self._fenced: deque[tuple[int, int]] = deque()  # of requests that ended: the step to wait for, and their row
        blocks.keeps = self._keeps
        self.drops_stale = connector.drops_late

    def launched(self, step: ConnectedStep) -> None:
        """A step has been given to the device."""
        self._launched += bool(step.scheduled)

    def finish(self, step: ConnectedStep, now_s: float) -> bool:
        """Take in the results of a step; returns whether there was a token among them."""
        self._now_s = now_s
        arrivals, lives = step.arrivals, self._held.owners
        if step.scheduled:
            self._processed += 1
            while self._fenced and self._fenced[0][0] <= self._processed:
                self._release(self._fenced.popleft()[1], fenced=True)
        failed = [lives[row] for row in arrivals.failed if lives[row].status is LOADING]
        sampled = self.take_in(step)
        for live in failed:
            live.load_failed = True
            if self._connector.fails_requests:
                del self._held.lives[live]
                self._blocks.free(live.row, live.num_blocks)  # they stay until the load is told of, below
                self._completion.end(live, Status.ABORTED, now_s)
        self._connector.arrived(arrivals)
        if step.record is not None:
            ids = [sorted([lives[row].request_id for row in rows]) for rows in arrivals[:3]]
            step.record |= dict(zip(("received", "failed", "sent"), ids, strict=True))
        for row in arrivals.loaded:
            lives[row].is_loading = False
            if lives[row] not in self._held.lives:
                self._release(row)
        for row in arrivals.sent:
            self._release(row)
        if step.record is not None:
            step.record["num_free_blocks_end"] = self._blocks.num_free
        return sampled

    def _release(self, row: int, *, fenced: bool = False) -> None:
        self._blocks.release(row, fenced=fenced)
        del self._held.owners[row]

    def _keeps(self, row: int) -> bool:
        """Whether the blocks of a request that ends now stay: a step or a load writes them, or they are being sent."""
        live = self._held.owners[row]
        if live.status is FINISHED and isinstance(self._blocks, ConnectedGroups):
            self._blocks.ends(live)
        if live.is_loading:
            return True
        if self._connector.is_fenced and live.in_flight_tokens:
            self._fenced.append((self._launched, row))
            return True
        return self._connector.keeps(live, self._now_s)
