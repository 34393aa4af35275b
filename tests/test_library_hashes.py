"""Every file that the library's scenarios write is as the table of hashes has it."""

from pathlib import Path

import pytest

from tests.library_hashes import ARITHMETIC, RUNS, absent, arithmetic, content, differing, hashes_of, read


def test_table_names_every_run() -> None:
    assert read().keys() == {ARITHMETIC, *RUNS}, "python -m tests.library_hashes --write"


@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_library_writes_the_same_files(run: str) -> None:
    table = read()
    if missing := absent(run):
        pytest.skip(f"real data not here: {', '.join(missing)} (set BATCHLAB_SHARED to the folder that holds it)")
    if table[ARITHMETIC] != {"": arithmetic()}:
        pytest.skip("numpy's last bits are others here than where the table was written")
    assert differing(table[run], hashes_of(run)) == []


def test_words_are_left_out_and_figures_are_not(tmp_path: Path) -> None:
    def of(text: str) -> bytes:
        (tmp_path / "summary.json").write_text(text, encoding="utf-8")
        return content(tmp_path / "summary.json")

    said = '{"a": [1.5, {"why": "two words"}], "version": "1"}'
    assert of(said) == of(said.replace("two words", "three other words").replace('"1"', '"2"'))
    assert of(said) != of(said.replace("1.5", "1.6"))
    assert of(said) != of(said.replace("two words", "word"))


def test_a_file_more_or_less_or_other_differs() -> None:
    assert differing({"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4", "d": "5"}) == ["a", "c", "d"]
