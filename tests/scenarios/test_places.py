"""Paths that name a place by a variable."""

from pathlib import Path

import pytest

from scenarios.schema.loader import shared_folder, unset_hint, with_variables


def test_shared_is_the_variable_or_beside_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHLAB_SHARED", str(tmp_path))
    assert shared_folder() == tmp_path
    assert with_variables("${BATCHLAB_SHARED}/a/b.csv") == f"{tmp_path}/a/b.csv"
    monkeypatch.delenv("BATCHLAB_SHARED")
    beside = Path(__file__).resolve().parents[3] / "shared"
    assert shared_folder() == beside
    assert with_variables("${BATCHLAB_SHARED}/a") == f"{beside}/a"


def test_other_variables_are_replaced_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TRACES", "there")
    monkeypatch.delenv("NO_TRACES", raising=False)
    assert with_variables("${SOME_TRACES}/${NO_TRACES}/x$y") == "there/${NO_TRACES}/x$y"
    assert unset_hint(Path("there/${NO_TRACES}/x")) == "the environment variable NO_TRACES is not set"


def test_a_hint_only_where_the_whole_folder_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHLAB_SHARED", str(tmp_path / "no"))
    assert "set BATCHLAB_SHARED" in (unset_hint(tmp_path / "no" / "x.csv") or "")
    assert unset_hint(tmp_path / "x.csv") is None
    (tmp_path / "no").mkdir()
    assert unset_hint(tmp_path / "no" / "x.csv") is None  # the folder is there: the name is wrong
