"""The page of policies: it says what the code says, and every policy has its place on it."""

import dataclasses
import sys
from pathlib import Path

import pytest

from docs.writers.systems import page
from simulator.policies import built_in_policies, policy_class, system_of
from tests.test_house import MAX_LINES

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    assert written == page(), "write it again: make pages PAGES=systems"


@pytest.mark.parametrize("policy", built_in_policies())
def test_every_policy_answers_every_question(policy: str) -> None:
    system = system_of(policy)
    assert system is not None
    answers = dataclasses.asdict(system)
    answers.update(answers.pop("checked") or {})
    for question, answer in answers.items():
        assert answer.strip(), question


@pytest.mark.parametrize("policy", built_in_policies())
def test_a_policy_is_one_short_file_or_a_folder_of_them(policy: str) -> None:
    """Adding one touches nothing else. Its first file has what every policy has, those beside it the rule."""
    found = sys.modules[policy_class(policy).__module__].__file__
    assert found is not None
    first = Path(found)
    files = sorted(first.parent.glob("*.py")) if first.name == "__init__.py" else [first]
    assert len(files) <= 7
    for file in files:
        longest = 240 if file == first else MAX_LINES
        assert len(file.read_text(encoding="utf-8").splitlines()) <= longest, file.name
