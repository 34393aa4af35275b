"""Hooks of mkdocs: what mkdocs.yml cannot say.

Pages link to shipped scenarios, which lie beside docs/ and not in it; they become files of the site. The notebook
becomes a page, with the outputs that it holds.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOK, PAGE = "notebook.ipynb", "in-a-notebook.md"
_OUTWARDS = re.compile(r"\]\((?:\.\./)+(scenarios/library/)")


def on_files(files: Any, config: Any) -> Any:
    """Make the shipped scenarios files of the site, and the notebook a page of it."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "scenarios" / "library").rglob("*.*")):  # and their schema, which editors fetch
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            parts.extend(_shown(output["data"], pictures))
    files.append(File.generated(config, PAGE, content="\n\n".join(parts) + f"\n\nThe file: [{NOTEBOOK}]({NOTEBOOK})\n"))
    for name, data in pictures.items():
        files.append(File.generated(config, f"pictures/{name}", content=data))
    return files


def _shown(data: dict[str, Any], pictures: dict[str, bytes]) -> Iterator[str]:
    """An output in the richest form that it has; its picture goes into `pictures`."""
    if "image/png" in data:
        name = f"notebook-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode("".join(data["image/png"]))
        yield f"![What the cell draws](pictures/{name})"
    elif "text/html" in data:
        html = "".join(data["text/html"])
        html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL).replace("\n\n", "\n")
        yield html.replace(' border="1" class="dataframe"', "")  # the site's own looks
    else:
        yield f"```text\n{''.join(data['text/plain'])}\n```"


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Lead the links to scenarios to where the site has them."""
    del others
    up = "../" * page.file.src_uri.count("/")
    return _OUTWARDS.sub(rf"]({up}\1", markdown)
