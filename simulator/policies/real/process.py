"""A real scheduler in a process of its own: a user's Python that has vLLM, asked over a pipe.

Nothing of the engine is imported here, and nothing of batchlab there: `programs/` holds what that Python runs.
"""

import json
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Literal

from simulator.errors import InputError

EngineName = Literal["vllm", "sglang"]
VLLM: Final = "vllm"
SGLANG: Final = "sglang"
TITLES: Mapping[str, str] = {VLLM: "vLLM", SGLANG: "SGLang"}
_PROGRAM = Path(__file__).with_name("programs") / "serve.py"
_PATIENCE_S = 20.0  # for the process to end when its pipe is closed


class EngineProcess:
    """The process; `engine` and `version` are what its Python has. InputError where it has no such engine."""

    def __init__(self, python: str, engine: EngineName) -> None:
        self.python = python
        found = shutil.which(python)
        if found is None:
            raise InputError(no_program(python))
        # A file and not a pipe: what an engine prints there would fill it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed with the process
        self._process = subprocess.Popen(
            [found, str(_PROGRAM), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        )
        self.close = weakref.finalize(self, _end, self._process, self._errors)
        first = self._read()
        if "error" in first:
            hint = f"install it there, or name another Python: {first['error']}"
            raise InputError(f"{python} has no {TITLES[engine]} that can be asked", hint=hint)
        self.engine: EngineName = first["engine"]
        self.version: str = first["version"]

    @property
    def title(self) -> str:
        """The engine's name and version."""
        return f"{TITLES[self.engine]} {self.version}"

    def start(self, settings: Mapping[str, object]) -> None:
        """Make a new scheduler. InputError for a setting that this version does not have."""
        self._ask({"start": settings})

    def step(
        self,
        *,
        aborted: Sequence[str] = (),
        results: Sequence[Mapping[str, object]] = (),
        arrived: Sequence[Mapping[str, object]] = (),
        plan: bool = True,
    ) -> dict[str, Any]:
        """Tell the scheduler what happened since its last plan, and ask for the next.

        `results` are those of the oldest steps in flight, each as `told_results` has it. Returns who finished with them
        (`finished`), the free blocks then (`free_before`), and of the plan `scheduled` and `admitted` (tokens, and
        cached tokens, by request), `preempted` (with the tokens that the step had given them) and `free`; `waiting` and
        `running` unless the settings say `brief`; further entries are those of the engine's program. InputError if the
        scheduler fails.
        """
        return self._ask({"aborted": aborted, "results": results, "arrived": arrived, "plan": plan})

    def _ask(self, told: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(told) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        found = self._read()
        if "error" in found:
            raise SchedulerError(f"{self.title}: {found['error']}", found.get("key"))
        return found

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            found = json.loads(line)
        except ValueError:
            raise self._ended() from None
        assert isinstance(found, dict)
        return found

    def _ended(self) -> InputError:
        """The error for a process that no longer answers, with its own last words."""
        self._errors.seek(0)
        words = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return InputError(f"{self.python} ended without an answer: {words[-1] if words else 'it said nothing'}")


def has_sglang_alone(python: str) -> bool:
    """Whether the environment of this Python has SGLang and no vLLM, by the folders of its packages. It is not run."""
    found = shutil.which(python)
    places = [] if found is None else list(Path(found).parents[1].glob("lib/python3*/site-packages"))
    return any((place / SGLANG).is_dir() for place in places) and not any((place / VLLM).is_dir() for place in places)


class SchedulerError(InputError):
    """The scheduler refuses a setting, which `key` names with the engine's word, or fails in a step."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


def told_results(
    ended: Sequence[str] = (), tokens: Mapping[str, int] | None = None, drafts: Mapping[str, int] | None = None
) -> dict[str, object]:
    """A step's results for `EngineProcess.step`: answers that `ended` with it, tokens where not one, new drafts."""
    more = {name: count for name, count in (tokens or {}).items() if count > 1}
    return {"ended": ended, "tokens": more, "drafts": {name: count for name, count in (drafts or {}).items() if count}}


def no_program(python: str) -> str:
    """The message for an interpreter that is not there."""
    return f"python names no program that can be run: {python}"


def _end(process: subprocess.Popen[str], errors: IO[str]) -> None:
    """Close the pipe, at which the program ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already
        process.stdin.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    errors.close()
