"""What mkdocs is told beyond mkdocs.yml: pages link to shipped scenarios, which lie beside docs/ and not in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_OUTWARDS = re.compile(r"\]\((?:\.\./)+(scenarios/library/)")


def on_files(files: Any, config: Any) -> Any:
    """Make the shipped scenarios and studies files of the site."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "scenarios" / "library").rglob("*.yaml")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Lead the links to them to where the site has them."""
    del others
    up = "../" * page.file.src_uri.count("/")
    return _OUTWARDS.sub(rf"]({up}\1", markdown)
