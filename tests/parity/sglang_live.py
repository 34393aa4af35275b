"""SGLang's own scheduler, asked in an interpreter of its own: BATCHLAB_SGLANG_PYTHON names one that has SGLang."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parity.cases import Case

VARIABLE = "BATCHLAB_SGLANG_PYTHON"
DRIVER = Path(__file__).with_name("sglang_driver.py")


def missing() -> str | None:
    """Why SGLang cannot be asked, or None."""
    named = os.environ.get(VARIABLE)
    return None if named and shutil.which(named) else f"{VARIABLE} names no python with SGLang"


def python() -> str:
    """The interpreter that has SGLang; skips the test, saying so, where none is named."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return os.environ[VARIABLE]


def answers(cases: Iterable[Case], harness: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """The records of each case while the scheduler goes on, from the harness in that folder: read one to its end."""
    with tempfile.TemporaryFile("w+") as given:
        given.writelines(json.dumps(case) + "\n" for case in cases)
        given.seek(0)
        asked = [python(), str(DRIVER), str(harness)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(asked, stdin=given, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            lines = process.stdout
            for line in lines:
                assert json.loads(line) == "case"
                yield iter(lambda: json.loads(next(lines)), None)
        assert process.returncode == 0
