import time
from io import StringIO

import pytest

from scenarios.cli.flags import BAR_EVERY_S, LINE_EVERY_S, Progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch, stream: StringIO) -> list[str]:
    """What a simulation of 10 s and 1,000 requests shows."""
    ticks = 0
    monkeypatch.setattr(time, "monotonic", lambda: ticks / 8)
    progress = Progress("static", 1000, stream=stream)
    for ticks in range(80):
        progress(ticks * 12 + 40)
    progress.close()
    return stream.getvalue().split("\r" if stream.isatty() else "\n")


def test_progress_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = watch(monkeypatch, StringIO())
    assert lines == [
        "static: 232 of 1,000 requests, 23%, 7 s left",
        "static: 712 of 1,000 requests, 71%, 3 s left",
        "",
    ]
    assert LINE_EVERY_S == 5


def test_progress_is_a_bar_on_a_terminal_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watch(monkeypatch, Terminal())
    assert shown[1].startswith("[######........................] static: 232 of 1,000")
    assert len(shown) > 8 / BAR_EVERY_S / 2
    assert shown[-2].strip() == ""
    assert shown[-1] == ""


@pytest.mark.parametrize("stream", [StringIO(), Terminal()])
def test_without_a_total_there_is_no_share(monkeypatch: pytest.MonkeyPatch, stream: StringIO) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    progress = Progress("static", 0, stream=stream)
    now_s = 3.0
    progress(232)
    assert stream.getvalue().strip() == "static: 232 requests"


def test_a_total_may_come_later_and_one_is_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    times, stream = iter((0.0, 3.0, 10.0, 20.0)), StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    progress = Progress("mine", 0, noun="candidates", stream=stream)
    for total in (0, 20, 1):
        progress(1, total)
    assert stream.getvalue().splitlines() == [
        "mine: 1 candidate",
        "mine: 1 of 20 candidates, 5%, 190 s left",
        "mine: 1 of 1 candidate, 100%, 0 s left",
    ]


def test_a_bar_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    shown = watch(monkeypatch, Terminal())
    assert max(map(len, shown)) == 49
