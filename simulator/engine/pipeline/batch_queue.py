"""The loop of a pipeline: batches are scheduled until as many are in flight as may be, and then the oldest is awaited.

As in vLLM 0.33 (`EngineCore.step_with_batch_queue`, vllm/v1/engine/core.py:708-820, and `_process_engine_step`). A
batch takes its place in the queue even if it is empty. Arrivals and aborts are seen between two calls, not while the
engine waits for a result or sleeps.
"""

from collections import deque
from collections.abc import Generator
from math import inf

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.intake import Intake
from simulator.engine.pipeline.replica import PipelinedReplica
from simulator.engine.speculative.step import VerifyStep


class BatchQueueLoop:
    """Drives one replica with a pipeline; `serve` is a SimPy process. Every step is planned: none is jumped over."""

    def __init__(self, clock: Clock, replica: PipelinedReplica, *, fast_forward: bool) -> None:
        self.intake = Intake(clock, replica)
        self._clock = clock
        self._replica = replica
        self._fast_forward = fast_forward

    def serve(self) -> Generator[Event, object, None]:
        """Schedule batches and take in their results, for ever; at rest while there is nothing to do."""
        clock, replica, intake = self._clock, self._replica, self.intake
        queue: deque[VerifyStep] = deque()
        intake.receive(clock.now)
        while True:
            replica.end_aborted(clock.now)
            executed, called_s = False, clock.now
            if replica.has_work(called_s):
                batch = replica.schedule(called_s)
                queue.append(batch)
                executed = batch.shape.tokens > 0
            elif not queue:
                yield intake.rest(inf)
                intake.woken()
                continue
            if len(queue) == replica.depth or not (executed or replica.has_work(called_s)):
                oldest = queue.popleft()
                end_s = oldest.ends_s[-1]
                if end_s > clock.now and not (self._fast_forward and clock.skip_to(end_s)):
                    yield intake.watch(oldest, end_s)
                    intake.release()
                replica.finish_step(oldest)
                if replica.has_listener and (pause := intake.follow_up()) is not None:
                    yield pause
            if not executed and replica.idle_s > 0 and replica.has_work(called_s):
                wake_s = clock.now + replica.idle_s
                if not (self._fast_forward and clock.skip_to(wake_s)):
                    yield clock.at(wake_s)
            if intake.due_s <= clock.now:
                intake.receive(clock.now)
