"""The rule for results that are there already: nothing is replaced unless it is asked for."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from scenarios.runs.storage.output import output, output_file, same_scenario
from scenarios.runs.storage.run_folder import COMPARISON, SCENARIO
from simulator.errors import InputError
from tests.command import tree

YAML = "name: a\nseed: 0\n"


REPORT = {"report.html": "drawn"}
DECISIONS = {"decisions.jsonl.gz": "new"}


def fill(
    target: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    *,
    rows: str = "rows",
    yaml: str = YAML,
    overwrite: bool = False,
) -> None:
    with output(target, overwrite=overwrite, expected=same_scenario(lambda: yaml)) as folder:
        (folder / SCENARIO).write_text(yaml)
        (folder / "summary.json").write_text(rows)
        for name, text in more.items():
            (folder / name).write_text(text)


def test_a_new_and_an_empty_folder_are_filled(tmp_path: Path) -> None:
    fill(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".partial-1").mkdir()  # a killed process left it
    fill(tmp_path / "empty")
    assert (tmp_path / "new/summary.json").read_text() == (tmp_path / "empty/summary.json").read_text() == "rows"


def test_the_same_run_again_adds_and_removes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, REPORT)
    before = tree(tmp_path)
    fill(tmp_path)
    assert tree(tmp_path) == before
    fill(tmp_path, DECISIONS)
    assert tree(tmp_path).keys() == before.keys() | {"decisions.jsonl.gz"}


def test_another_run_is_refused_before_it_runs(tmp_path: Path) -> None:
    fill(tmp_path, REPORT)
    before = tree(tmp_path)
    with (
        pytest.raises(InputError, match=r"holds a run and its report already.*seed: 0 there, seed: 1 here") as caught,
        output(tmp_path, expected=same_scenario(lambda: YAML.replace("0", "1"))),
    ):
        raise AssertionError("the block must not run")
    assert "--overwrite" in (caught.value.hint or "")
    assert "--out" in (caught.value.hint or "")
    assert tree(tmp_path) == before


def test_the_same_scenario_with_other_results_is_refused_at_the_end(tmp_path: Path) -> None:
    """The policy's own file may have changed, or the trace: the scenario does not tell."""
    fill(tmp_path, REPORT)
    before = tree(tmp_path)
    with pytest.raises(InputError, match=r"summary\.json would change; nothing was written"):
        fill(tmp_path, DECISIONS, rows="others")
    assert tree(tmp_path) == before


def test_overwrite_replaces_ours_and_leaves_what_is_not(tmp_path: Path) -> None:
    fill(tmp_path, REPORT)
    (tmp_path / "notes.txt").write_text("mine")
    fill(tmp_path, yaml=YAML.replace("0", "1"), rows="others", overwrite=True)
    assert tree(tmp_path).keys() == {SCENARIO, "summary.json", "notes.txt"}
    assert (tmp_path / "summary.json").read_text() == "others"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_others_is_refused_always(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"not empty and holds no earlier run.*thesis\.tex"):
        fill(tmp_path, overwrite=overwrite)


def test_what_is_never_the_same_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lockstep.json").touch()
    with pytest.raises(InputError, match="holds a lockstep already"), output(tmp_path, expected=None):
        raise AssertionError("the block must not run")


def test_a_comparison_of_other_policies_is_refused_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / SCENARIO).write_text(YAML)
    (tmp_path / COMPARISON).touch()
    (tmp_path / "static/seed-0").mkdir(parents=True)
    with output(tmp_path, expected=same_scenario(lambda: YAML), runs=[Path("static/seed-0")]):
        pass
    with (
        pytest.raises(InputError, match="holds a comparison already; its policies or seeds differ"),
        output(tmp_path, expected=same_scenario(lambda: YAML), runs=[Path("static/seed-0"), Path("static/seed-1")]),
    ):
        raise AssertionError("the block must not run")


def test_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.json"

    def write(text: str, *, overwrite: bool = False) -> None:
        with output_file(path, overwrite=overwrite) as made:
            made.write_text(text)

    write("one")
    (path.parent / "other").touch()
    write("one")
    with pytest.raises(InputError, match=r"profile\.json would change"):
        write("two")
    assert path.read_text() == "one"
    write("two", overwrite=True)
    assert path.read_text() == "two"
    assert tree(path.parent).keys() == {"profile.json", "other"}
