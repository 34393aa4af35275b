import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from calibration.own_steps import fit_steps, read_step_log
from simulator.errors import InputError
from simulator.timing.cost import StepShape
from simulator.timing.profile import ProfileCost, load_profile


def write(path: Path, header: str, rows: Sequence[tuple[float, ...]]) -> Path:
    path.write_text("\n".join([header, *[",".join(f"{value:.17g}" for value in row) for row in rows]]) + "\n")
    return path


def whole_steps() -> list[tuple[float, ...]]:
    random = np.random.default_rng(1)
    rows: list[tuple[float, ...]] = []
    for _ in range(200):
        seqs = int(random.integers(1, 100))
        context = seqs * int(random.integers(50, 3000))
        tokens = int(random.choice([0, 0, 100, 900]))
        work = ((8.0**4) + (0.02 * (seqs + tokens)) ** 4) ** 0.25
        ms = 1.0 + work + 5e-5 * context + 1e-5 * tokens * (tokens + 1) / 2 + 0.005 * (seqs + (tokens > 0))
        rows.append((seqs, context, tokens, ms))
    return rows


def test_a_log_of_whole_steps_becomes_a_profile(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "decode_seqs,decode_context,prefill_tokens,ms", whole_steps())
    fitted = fit_steps(read_step_log(path), "log", "llama-3.1-8b", "h200")
    assert fitted.document is not None
    assert fitted.errors["random"]["mape"] < 0.5
    cost = ProfileCost(load_profile(json.loads(json.dumps(fitted.document))))
    for seqs, context, tokens, ms in whole_steps()[:20]:
        pairs = int(tokens * (tokens + 1) / 2)
        chunk = (1, int(tokens), int(tokens), pairs, 0, 0, int(tokens)) if tokens else ()
        shape = StepShape(int(seqs), int(context), *chunk)
        assert cost.step_s(shape) == pytest.approx(ms / 1e3, rel=0.03)  # graphs pad the batch


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1.0), ("seconds", 1e-3), ("us", 1e3)])
def test_tokens_and_context_give_the_linear_cost(tmp_path: Path, unit: str, factor: float) -> None:
    rows = [
        (t, t * c, (4.0 + 0.02 * t + 1e-5 * t * c) * factor) for t in (1, 30, 200, 500) for c in (10, 300, 900, 2000)
    ]
    path = write(tmp_path / "log.csv", f"tokens,context,{unit}", rows)
    linear = fit_steps(read_step_log(path), "log").linear
    assert linear is not None
    assert linear.base_s == pytest.approx(4e-3, rel=1e-3)
    assert linear.per_token_s == pytest.approx(2e-5, rel=1e-3)
    assert linear.per_context_token_s == pytest.approx(1e-8, rel=1e-3)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("tokens,context,time", "no column of times"),
        ("tokens,ms", "no column has the work of the steps"),
        ("tokens,context,ms", "too few to fit"),
    ],
)
def test_what_a_log_lacks_is_said(tmp_path: Path, header: str, words: str) -> None:
    path = write(tmp_path / "log.csv", header, [(1.0,) * len(header.split(","))])
    with pytest.raises(InputError, match=words):
        fit_steps(read_step_log(path), "log")


def test_times_are_above_0(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", "tokens,context,ms", [(1, 1, 0)] * 20)
    with pytest.raises(InputError, match="above 0"):
        read_step_log(path)
