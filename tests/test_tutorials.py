"""Tutorials: every command is run, and prints what the page says; every picture is made by a command before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorial import commands, rewritten

DOCS = Path(__file__).parents[1] / "docs"
SLOW = (
    "which-policy",
    "which-settings",
    "does-it-match",
    "my-own-policy",
    "my-own-cost-model",
    "on-a-cluster",
)
"""Together 40 CPU seconds."""


@pytest.mark.parametrize(
    ("name", "least"),
    [("how-many-gpus", 5), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in SLOW)],
)
def test_the_page_says_what_its_commands_print(name: str, least: int, tmp_path: Path) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert len(list(commands(page))) >= least
    assert rewritten(page, tmp_path) == page
