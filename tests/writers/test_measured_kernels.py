"""`list models` names the GPUs whose tables price a model whole."""

import json
from pathlib import Path

import pytest

from docs.writers.measured_kernels import FILE, fewest, text
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from tests.command import batchlab


def test_the_file_is_of_the_built_in_models() -> None:
    assert list(json.loads(FILE.read_text(encoding="utf-8"))) == list(MODELS)
    assert (fewest(MODELS["llama-3.1-8b"], GPUS["h100"]), fewest(MODELS["llama-3.1-70b"], GPUS["h100"])) == (1, 2)


@pytest.mark.long
def test_the_file_says_what_the_tables_have() -> None:
    assert text() == FILE.read_text(encoding="utf-8")


def test_models_are_listed_with_their_gpus(tmp_path: Path) -> None:
    lines = {
        line.split()[0]: line for line in batchlab("list", "models", cwd=tmp_path).out.splitlines() if line[0] != " "
    }
    assert lines.keys() == MODELS.keys()
    assert "kernels of" in lines["llama-3.1-8b"]
