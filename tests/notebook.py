"""Notebooks of docs/, executed from the first cell to the last.

`python -m tests.notebook docs/notebook.ipynb` executes one and writes its outputs anew, or into another file behind it.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

PICTURE = "image/png"


def executed(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, without what changes from one execution to the next."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    found: dict[str, Any] = json.loads(nbformat.writes(notebook))
    return found


def shown(notebook: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """Each cell and what a reader sees below it; of a picture only that there is one."""
    return [("".join(cell["source"]), [_seen(each) for each in cell.get("outputs", ())]) for cell in notebook["cells"]]


def _seen(output: dict[str, Any]) -> Any:
    data = output.get("data", {})
    return PICTURE if PICTURE in data else {kind: "".join(text) for kind, text in data.items()} or output


if __name__ == "__main__":
    Path(sys.argv[-1]).write_text(
        json.dumps(executed(Path(sys.argv[1])), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
