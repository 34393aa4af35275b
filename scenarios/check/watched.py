"""A policy under watch: its plans take CPU seconds, not for ever, and lead to tokens."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulator.plan import Policy, StepPlan, View

MOST_CPU_S = 1.0  # for one plan, over a dozen requests at most
_CAN_LIMIT = hasattr(signal, "setitimer")  # not on Windows


class LivelockError(Exception):
    """Too many plans in a row without a token."""


class TooLongError(BaseException):
    """A plan was not made in its CPU time. Not an Exception: a policy that catches these must not catch this."""


class Watched:
    """Passes the plans of `inner` on, and remembers when they were made; all other attributes are those of `inner`."""

    def __init__(self, inner: Policy, most_barren: int) -> None:
        self.inner = inner
        self.plans = 0
        self.now_s = 0.0
        self._most_barren = most_barren
        self._barren = 0
        self._tokens: tuple[int, int, int] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def max_num_seqs(self) -> int:
        return self.inner.max_num_seqs

    def plan(self, view: View) -> StepPlan:
        self.plans += 1
        self.now_s = view.now_s
        self._watch_tokens(view)
        if not (_CAN_LIMIT and signal.getsignal(signal.SIGVTALRM) is _too_long):
            return self.inner.plan(view)
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
        try:
            return self.inner.plan(view)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _watch_tokens(self, view: View) -> None:
        requests = [*view.waiting, *view.running]
        tokens = view.decode_steps, len(requests), sum(request.output_tokens_so_far for request in requests)
        self._barren = self._barren + 1 if tokens == self._tokens else 0
        self._tokens = tokens
        if self._barren > self._most_barren:
            running, waiting = len(view.running), len(view.waiting)
            raise LivelockError(
                f"{self._barren} plans in a row gave no token: {running} running, {waiting} waiting, "
                f"{view.num_free_blocks} of {view.num_blocks} blocks free"
            )


def watched(policy: Policy, most_barren: int) -> Watched:
    """Put a policy under watch. An error about it names its own class and file."""
    cls = type(policy)
    named = type(cls.__name__, (Watched,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    under_watch: Watched = named(policy, most_barren)
    return under_watch


def _too_long(number: int, frame: object) -> None:
    raise TooLongError(f"a plan took more than {MOST_CPU_S:g} s of CPU time")


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Raise TooLongError for a plan that takes more than MOST_CPU_S of CPU time, if the system has such a clock."""
    if not _CAN_LIMIT or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)
