import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.timing.profile import load_profile, read_profile
from tests.profile_maker import axis, document


def test_a_profile_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document()))
    profile = read_profile(path)
    assert (profile.name, profile.layers, profile.host_s) == ("tiny", 2, 1e-4)
    assert profile.attention.decode.surface.correction[1] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "another"}, "not a profile"),
        ({"version": 2}, "version 2; this batchlab reads version 1"),
        ({"layers": 0}, "layers is 0"),
        ({"attention": None}, "no 'attention'"),
        ({"host": {"step_s": -1, "seq_s": 0}}, "host.step_s is -1"),
        ({"tables": {"layer": {}, "step": {}, "rows": []}}, "damaged"),
        (
            {"tables": {"layer": {"qkv": {"counts": [2, 1], "us": [1, 2], "us_beyond": 0}}, "step": {}, "rows": {}}},
            "do not ascend",
        ),
        (
            {"tables": {"layer": {"qkv": {"counts": [1, 2], "us": [1], "us_beyond": 0}}, "step": {}, "rows": {}}},
            "1 times for 2 counts",
        ),
        ({"skew": {"axes": [axis("a", 1, 2)] * 3, "decode": [1], "mixed": [1]}}, "not as large as its axes"),
        ({"experts": {"experts": 4, "top_k": 2, "surface": {}}}, "no 'axes'"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        load_profile(document(**changes), "p.json")
    assert found.value.file == "p.json"


def test_a_surface_needs_a_correction_for_each_cell() -> None:
    made = document()
    made["attention"]["decode"]["correction"].pop()
    with pytest.raises(InputError, match="8 corrections for a grid of 9"):
        load_profile(made)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}'])
def test_a_file_that_is_no_profile(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a profile"):
        read_profile(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the profile"):
        read_profile(tmp_path / "p.json")
