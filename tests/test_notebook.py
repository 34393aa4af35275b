"""The notebook: every cell runs, and shows what the file says."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.notebook import PICTURE, shown

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="needs nbclient and ipykernel"
)
def test_cells_show_what_the_file_says(tmp_path: Path) -> None:
    """In a process of its own: what a kernel's sockets and loops leave behind is not ours to judge."""
    again = tmp_path / "again.ipynb"
    command = [sys.executable, "-m", "tests.notebook", str(NOTEBOOK), str(again)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written, found = (json.loads(path.read_text(encoding="utf-8")) for path in (NOTEBOOK, again))
    assert shown(found) == shown(written), "execute it again: python -m tests.notebook docs/notebook.ipynb"
    assert sum(outputs == [PICTURE] for _, outputs in shown(written)) >= 2
