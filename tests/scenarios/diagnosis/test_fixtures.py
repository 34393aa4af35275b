"""Scenarios broken on purpose, healthy ones, and ones that no remedy helps: what diagnosis says of each."""

from pathlib import Path

import pytest

from scenarios.diagnosis.diagnose import explain, headline, outcome, short
from scenarios.diagnosis.evidence import Findings
from scenarios.diagnosis.rules import RULES
from scenarios.schema.loader import load

DATA = Path(__file__).parents[2] / "data" / "diagnosis"
OF_CACHES = {"cache-cold": "cold", "cache-off": "off", "cache-thrashing": "thrashing"}


def fixtures(kind: str) -> list[str]:
    return sorted(path.stem for path in (DATA / kind).glob("*.yaml"))


def test_every_finding_has_a_scenario() -> None:
    named = {"prefix-cache" if name in OF_CACHES else name for name in fixtures("broken") + fixtures("helpless")}
    assert named == {rule.name for rule in RULES}
    assert len(fixtures("healthy")) == 4


@pytest.mark.parametrize("name", fixtures("broken"))
def test_the_right_cause_comes_first_and_its_remedy_helps(name: str) -> None:
    explained = explain(load(DATA / "broken" / f"{name}.yaml"))
    first, tried = explained.findings.found[0], explained.tried[0]
    assert first.rule.name == ("prefix-cache" if name in OF_CACHES else name)
    if name in OF_CACHES:
        assert first.claim.numbers["prefix_cache"] == OF_CACHES[name]
    assert explained.findings.unexplained < 0.1
    best = min(tried, key=lambda trial: (not trial.solved, trial.late_after))
    assert best.solved
    assert outcome(best).startswith("helps: ")
    if first.late:
        assert best.late_after <= 0.1 * best.late_before
    else:
        assert name == "load-bound"
        before, after = best.metrics["usd_per_million_output_tokens"]
        assert after < 0.5 * before


@pytest.mark.parametrize("name", fixtures("healthy"))
def test_nothing_is_found_in_a_healthy_run(name: str) -> None:
    found = explain(load(DATA / "healthy" / f"{name}.yaml")).findings
    assert found.found == ()
    assert found.healthy
    assert headline(found).endswith("the diagnosis found nothing to improve.")
    assert len(short(found)) == 1


@pytest.mark.parametrize("name", fixtures("helpless"))
def test_a_remedy_that_does_not_help_is_said_not_to(name: str) -> None:
    explained = explain(load(DATA / "helpless" / f"{name}.yaml"))
    assert explained.findings.found[0].rule.name == name
    assert explained.tried[0]
    for trial in explained.tried[0]:
        assert not trial.gained
        assert outcome(trial).startswith("no gain: late requests ")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Findings(requests=9), "the SLO is kept (no request is late)"),
        (Findings(requests=9, late=2, by_slo=False), "(2 of 9 requests that waited longer than a request is served"),
        (Findings(requests=9, by_slo=False), "requests hardly wait (no request waited longer than a request is served"),
        (Findings(requests=9, late=4, broken=True, by_slo=False), "4 of 9 requests waited longer than a request is"),
        (Findings(requests=9, late=4, broken=True), "4 of 9 requests are late (44 %)"),
    ],
)
def test_the_state_of_a_run_in_a_sentence(found: Findings, said: str) -> None:
    assert said in headline(found)
