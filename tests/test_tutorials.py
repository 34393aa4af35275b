"""Tutorials: every command is run, and prints what the page says; every picture is made by a command before it."""

from pathlib import Path

import pytest

from tests.tutorial import commands, rewritten

DOCS = Path(__file__).parents[1] / "docs"
LONG = ("how-many-gpus", "which-policy", "which-settings", "does-it-match", "my-own-policy", "on-a-cluster", "bound")
"""Together a CPU minute. That each command of a page is one, tests/test_docs.py says of all pages."""


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("my-own-cost-model", 2),
        *(pytest.param(name, 5 if name == "how-many-gpus" else 2, marks=pytest.mark.long) for name in LONG),
    ],
)
def test_the_page_says_what_its_commands_print(name: str, least: int, tmp_path: Path) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert len(list(commands(page))) >= least
    assert rewritten(page, tmp_path) == page
