"""The table of bounds on docs/bound.md is what the runs say."""

from pathlib import Path

import pytest

from docs.writers.bounds import markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bound.md"


@pytest.mark.long
def test_the_table_is_what_the_runs_say() -> None:
    assert markdown() in PAGE.read_text(encoding="utf-8"), "write it again: make pages PAGES=bounds"
