from io import StringIO

import pytest

from reports.tables.terminal import NARROWEST, PLAIN, Terminal, aligned, in_columns, terminal_of, visible, wants_colour


class Window(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_what_is_piped_does_not_depend_on_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal_of(StringIO()) == PLAIN


def test_a_window_gives_width_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal_of(Window()) == Terminal(70, colour=True)
    monkeypatch.setenv("COLUMNS", "3")
    assert terminal_of(Window()).width == NARROWEST


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    assert wants_colour(Window())
    monkeypatch.setenv(name, value)
    assert not wants_colour(Window())


def test_an_empty_no_color_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour(Window())


def test_columns_that_do_not_fit_follow_below() -> None:
    columns = [["a ", "bb"], ["1234", "   5"], ["12", " 3"], ["9", "8"]]
    assert in_columns(columns, 80) == "a   1234  12  9\nbb     5   3  8"
    assert in_columns(columns, 9) == "a   1234\nbb     5\n\na   12  9\nbb   3  8"
    assert in_columns(columns, 1) == "a   1234\nbb     5\n\na   12\nbb   3\n\na   9\nbb  8", "one at least"


def test_text_to_the_left_numbers_to_the_right() -> None:
    assert aligned([["name", "n"], ["x", "12"]], 1) == "name   n\nx     12"


def test_colours_take_no_room() -> None:
    red = Terminal(colour=True).paint("ab", "warning")
    assert red != "ab"
    assert visible(red) == 2
    assert aligned([[red, "1"], ["abc", "2"]], 1).splitlines()[0] == f"{red}   1"
    assert PLAIN.paint("ab", "warning") == "ab"


def test_lines_are_folded_in_a_window_only() -> None:
    line = "name   " + "word " * 30
    assert PLAIN.folded(line, 7) == line
    first, *others = Terminal(40).folded(line, 7).splitlines()
    assert first.startswith("name   word")
    assert others
    assert all(other.startswith("       word") and len(other) <= 40 for other in others)
