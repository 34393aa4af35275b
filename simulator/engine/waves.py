"""Waves of data-parallel ranks in lockstep: when all stop, and when all may compute prompts.

As in vLLM 0.33 (`DPEngineCoreProc.run_busy_loop`, vllm/v1/engine/core.py). The ranks ask each other whether any has
work after the first common step of a wave and after every `sync_interval`-th, and not between. So they go on with
dummy batches for some steps after the last request has finished. A request that finds them idle begins a new wave,
whose steps are counted from 0.
"""

USUAL_SYNC_INTERVAL = 16  # vLLM's `dp_sync_interval`


class Waves:
    """The ranks' common count; the first step of a wave and every `prefill_interval`-th may compute prompts."""

    __slots__ = ("_prefill_interval", "_steps", "_sync_interval", "runs")

    def __init__(self, sync_interval: int, prefill_interval: int) -> None:
        self._sync_interval = sync_interval
        self._prefill_interval = prefill_interval
        self._steps = 0
        self.runs = False

    def throttles(self) -> bool:
        """Return whether the next step holds prompts back, on every rank that decodes."""
        return self._steps % self._prefill_interval != 0

    def stepped(self, *, has_work: bool) -> None:
        """A common step is over; `has_work`: some rank has unfinished requests."""
        self._steps += 1
        if self._steps != 1 and self._steps % self._sync_interval:
            return
        self.runs = has_work
        if not has_work:
            self._steps = 0
