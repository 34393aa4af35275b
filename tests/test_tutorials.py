"""Tutorials: every command is run, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorial import commands, rewritten

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["how-many-gpus"])
def test_the_page_says_what_its_commands_print(name: str, tmp_path: Path) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert len(list(commands(page))) >= 5
    assert rewritten(page, tmp_path) == page
