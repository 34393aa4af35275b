"""The command in a real terminal (a pseudo one), and in a pipe."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.command import ROOT, START, batchlab, small

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def in_terminal(*arguments: str, cwd: Path, **settings: str) -> str:
    """What the command shows in a terminal 70 columns wide; stdout and stderr together."""
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        [*START, *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "70", "TERM": "xterm", **settings},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # as Linux says that the other side is closed
            break
        if not part:
            break
        shown += part
    process.wait(timeout=60)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_width_and_colours_in_a_terminal(tmp_path: Path) -> None:
    small(tmp_path)
    shown = in_terminal("run", "small.yaml", cwd=tmp_path)
    assert "\x1b[1mLatency\x1b[0m" in shown
    lines = ESCAPE.sub("", shown).splitlines()
    assert max(map(len, lines)) <= 70
    assert sum(line.startswith("chunked_prefill  ") for line in lines) > 3, "the blocks are broken into parts"


def test_no_color(tmp_path: Path) -> None:
    small(tmp_path)
    assert not ESCAPE.search(in_terminal("run", "small.yaml", cwd=tmp_path, NO_COLOR="1"))


def test_errors_are_red_in_a_terminal_only(tmp_path: Path) -> None:
    assert in_terminal("run", "quikstart", cwd=tmp_path).startswith("\x1b[1;31merror:\x1b[0m no shipped scenario")
    assert batchlab("run", "quikstart", cwd=tmp_path).err.startswith("error: no shipped scenario")


def test_a_pipe_does_not_know_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    before = batchlab("run", "small.yaml", cwd=tmp_path).out
    monkeypatch.setenv("COLUMNS", "50")
    assert batchlab("run", "small.yaml", cwd=tmp_path).out == before


@pytest.mark.parametrize(("typed", "offered"), [("batchlab comp", "compare"), ("batchlab run quick", "quickstart")])
def test_the_shell_completes(tmp_path: Path, typed: str, offered: str) -> None:
    done = subprocess.run(
        START,
        cwd=tmp_path,
        env={
            **os.environ, "PYTHONPATH": str(ROOT), "_BATCHLAB_COMPLETE": "complete_bash", "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == [offered], done.stderr


def test_completion_can_be_installed(tmp_path: Path) -> None:
    done = batchlab("--help", cwd=tmp_path)
    assert "--install-completion" in done.out
