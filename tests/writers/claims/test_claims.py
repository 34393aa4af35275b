"""What people say: every claim's figures are as expected, and the page says what its runs say."""

import csv
import math
import re
import shlex
from collections import Counter
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import scenarios
from docs.writers.claims import page as pages
from docs.writers.claims.claim import Claim, Expectation, Figures, read_head
from docs.writers.claims.page import CLAIMS
from docs.writers.claims.runs import largest_batch, memory_efficiency, run, steady_throughput, useful_slots
from simulator.policies import built_in_policies

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "claims.md"
AGAIN = "write it again: make pages PAGES=claims"

by_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.scenario)
by_measured_claim = pytest.mark.parametrize(
    "claim",
    [pytest.param(claim, marks=() if claim.number in (3, 4) else pytest.mark.long) for claim in CLAIMS],
    ids=lambda claim: claim.scenario,
)


def test_all_fifteen_are_here() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 16))
    shipped = [name for name in scenarios.shipped() if name.startswith("claim-")]
    assert shipped == [claim.scenario for claim in CLAIMS]
    assert all(claim.scenario.startswith(f"claim-{claim.number:02d}-") for claim in CLAIMS)


def is_met(expected: Expectation, figures: Figures) -> bool:
    return abs(figures[expected.figure] - expected.value) <= expected.tolerance + 1e-9


@by_measured_claim
def test_measures_what_is_expected_and_the_page_says_so(claim: Claim) -> None:
    """One test for both, so that a claim is run once wherever this runs."""
    figures = pages.measured(claim).figures
    for expected in claim.head.expected:
        assert is_met(expected, figures), f"{expected.figure} is {figures[expected.figure]:g}, not {expected.written}"
    written = PAGE.read_text(encoding="utf-8")
    assert f"\n{pages.overview_row(claim)}\n" in written, AGAIN
    assert f"\n\n{pages.section(claim)}\n" in written, AGAIN
    with (ROOT / "docs" / pages.DATA).open(encoding="utf-8", newline="") as file:
        kept = [tuple(row) for row in csv.reader(file) if row[0] == str(claim.number)]
    assert kept == [tuple(map(str, row)) for row in pages.figure_rows(claim)], AGAIN


def test_the_page_holds_nothing_else() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.startswith(pages.head() + "\n"), AGAIN
    rest = written.removeprefix(pages.head())
    assert [int(number) for number in re.findall(r"^\| \[(\d+)\]", rest, re.MULTILINE)] == list(range(1, 16))
    assert [int(number) for number in re.findall(r"^## Claim (\d+)$", rest, re.MULTILINE)] == list(range(1, 16))
    assert Counter(re.findall(r"^## .*$", rest, re.MULTILINE)).total() == 15


@by_claim
def test_the_head_can_be_followed(claim: Claim) -> None:
    head = claim.head
    assert head.expected
    assert head.commands
    for command in head.commands:
        verb, words = command.split()[1], shlex.split(command)
        assert words[0] == "batchlab"
        assert words[2] == claim.scenario
        scenarios.load(claim.scenario, [words[at + 1] for at, word in enumerate(words) if word == "--set"])
        policies = [words[at + 1] for at, word in enumerate(words) if word == "--policies"]
        assert (verb == "compare") == bool(policies)
        assert all(set(listed.split(",")) <= set(built_in_policies()) for listed in policies)


def test_a_head_that_lacks_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.schema.loader._LIBRARY", tmp_path)
    (tmp_path / "claim-98-bare.yaml").write_text("# Claim 98: x\n#\n# Claim    x\nname: x\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks Said, Look at, Expect, Try"):
        read_head("claim-98-bare")
    text = "# Claim 99: x\n# Claim    x\n# Said     x\n# Look at  x\n# Expect   - a is 1\n# Try      batchlab x\n"
    (tmp_path / "claim-99-vague.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no expectation"):
        read_head("claim-99-vague")


@pytest.mark.parametrize(("off_by", "met"), [(0.0, True), (0.29, True), (-0.29, True), (0.31, False), (-0.31, False)])
def test_an_expectation_can_fail(off_by: float, met: bool) -> None:
    expected = next(one for one in read_head("claim-03-four-outputs").expected if one.figure == "client_wait")
    assert is_met(expected, {"client_wait": 10 + off_by}) is met


# ------------------------------------------------------------------------------- figures that a formula gives as well


def longest_over_mean(cv: float, most: float, batch: int) -> float:
    """Mean of the longest of `batch` lognormal draws, cut at `most`, over the mean of one; by their quantiles."""
    sigma = math.sqrt(math.log(1 + cv**2))
    mu = math.log(200) - sigma**2 / 2
    share = NormalDist(mu, sigma).cdf(math.log(most))
    at = (np.arange(4000) + 0.5) / 4000

    def mean(probabilities: np.ndarray) -> float:
        return float(np.mean([math.exp(NormalDist(mu, sigma).inv_cdf(p * share)) for p in probabilities]))

    return mean(at ** (1 / batch)) / mean(at)


@pytest.mark.parametrize(("cv", "slots"), [(0.5, 32), (1.0, 8), (1.0, 32), (2.0, 32)])
def test_steps_saved_are_the_longest_over_the_mean(cv: float, slots: int) -> None:
    keys = (
        f"workload.classes.0.output={{dist: lognormal, mean: 200, cv: {cv}, max: 4096}}",
        f"engine.max_num_seqs={slots}",
        "hardware.num_gpu_blocks=200000",
        "cost={kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}",
    )
    static, orca = (run("claim-05-continuous-over-static", policy, *keys) for policy in ("static", "orca"))
    expected = longest_over_mean(cv, 4096, slots)
    assert steady_throughput(orca) / steady_throughput(static) == pytest.approx(expected, rel=0.06)
    assert useful_slots(static) == pytest.approx(1 / expected, rel=0.06)
    assert useful_slots(orca) == pytest.approx(1, abs=0.01)


def test_memory_efficiency_by_hand() -> None:
    """One request of 16 + 16 tokens in blocks of 16: of two blocks reserved, 24 of 32 tokens are used on average."""
    keys = (
        "workload={duration_s: 0.5, max_tokens: 16, classes: [{name: one, arrival: {process: constant, rate: 1},"
        " input: {dist: fixed, value: 16}, output: {dist: fixed, value: 16}}]}",
        "cost={kind: linear, base_s: 1, per_token_s: 0, per_context_token_s: 0}",
    )
    result = run("claim-04-static-8-continuous-64", "orca", *keys)
    assert largest_batch(result) == 1
    assert memory_efficiency(result) == pytest.approx((16 * 16 + 8 * 15) / (16 * 32))
