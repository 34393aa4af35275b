"""Prompts that wait until several can be computed at once: SGLang's PrefillDelayer.

`PrefillDelayer`, `PrefillDelayerSinglePassExecutor` and `RecentPrefillBatchSizeTracker` in
python/sglang/srt/managers/prefill_delayer.py (SGLang 0.5.23), as a server asks them whose attention is not divided
among data-parallel ranks. Line numbers are those of that file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from simulator.plan import View

WINDOW = 16  # latest attempts whose sizes count (`SGLANG_PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE`)
MAX_DELAY_MS = 5000.0  # where `prefill_delayer_max_delay_ms` is not set (:94)


class PrefillDelayer(NamedTuple):
    """The parameters of a policy that hold prompts back."""

    slots: int
    max_delay_passes: int
    token_usage_low_watermark: float | None
    queue_min_ratio: float | None
    max_delay_ms: float | None
    prefill_max_requests: int | None


class Delays(NamedTuple):
    """State that the delayer keeps from pass to pass, while the server is idle too."""

    passes: int = 0  # for so many, prompts have been held back
    since_s: float = 0.0  # when the first of these passes began
    sizes: tuple[int, ...] = ()  # requests of the latest attempts to prefill
    has_let_pass: bool = False  # the first prefill that was to wait did not (`skip_first_delayer`, :282)

    def over(self) -> Delays:
        """The state when no prompt is held back."""
        return self._replace(passes=0, since_s=0.0) if self.passes else self


NO_DELAYS: Final = Delays()


class DelayerPass:
    """One pass of the scheduler. It asks the delayer once at most, and only when a prompt could enter or goes on."""

    __slots__ = ("_delayer", "_delays", "_is_held_back", "_running", "_view")

    def __init__(self, delayer: PrefillDelayer, delays: Delays, view: View, running: int) -> None:
        self._delayer = delayer
        self._delays = delays
        self._view = view
        self._running = running  # requests that decode
        self._is_held_back: bool | None = None

    def holds_back(self) -> bool:
        """Whether no prompt may enter in this pass (`negotiate_should_allow_prefill`, :429)."""
        if self._is_held_back is None:
            self._is_held_back = self._negotiate()
        return self._is_held_back

    def end(self, computed: int) -> Delays:
        """The state after the pass, whose prefill step computes so many requests, none if it is no prefill (:395).

        Of a prefill that is held back, the size is estimated (:407).
        """
        if self._is_held_back is None:
            return self._delays.over()
        waiting, slots = len(self._view.waiting), self._delayer.slots - self._running
        size = computed or min(max(waiting, 1), max(slots, 1))
        return self._delays._replace(sizes=(*self._delays.sizes, size)[-WINDOW:])

    def _negotiate(self) -> bool:
        """`_negotiate_should_allow_prefill_pure` (:166), where prompts could enter on all ranks: on this one."""
        view, delayer, delays = self._view, self._delayer, self._delays
        self._delays = delays.over()
        low = delayer.token_usage_low_watermark
        if low is not None and (view.num_blocks - view.num_free_blocks) / view.num_blocks < low:
            return False
        most = max(delays.sizes, default=0)
        if not (delayer.slots - self._running < most or self._lacks_requests(most, delays)):
            return False
        if not delays.has_let_pass:
            self._delays = self._delays._replace(has_let_pass=True)
            return False
        if delays.passes >= delayer.max_delay_passes - 1:
            return False
        since_s = delays.since_s if delays.passes else view.now_s
        self._delays = delays._replace(passes=delays.passes + 1, since_s=since_s)
        return True

    def _lacks_requests(self, most: int, delays: Delays) -> bool:
        """Whether the queue is short beside the batch and has not been waited for too long (:250)."""
        delayer = self._delayer
        if delayer.queue_min_ratio is None or not self._running:
            return False
        capacity = most if delayer.prefill_max_requests is None else delayer.prefill_max_requests
        if len(self._view.waiting) >= min(int(self._running * delayer.queue_min_ratio), capacity):
            return False
        allowed_ms = MAX_DELAY_MS if delayer.max_delay_ms is None else delayer.max_delay_ms
        return not (delays.passes and (self._view.now_s - delays.since_s) * 1000.0 >= allowed_ms)
