"""What vLLM's own code decided once about its features: ours is the same, and each rule is needed for it."""

import gzip
import importlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.parity import features
from tests.shared_data import shared

WHOLE = {"balancer": "chosen", "queue_caps": "decisions"}


@cache
def recorded(kind: str) -> Sequence[dict[str, Any]]:
    with gzip.open(shared(f"oracle/features/recorded/{kind}.jsonl.gz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def differing(kind: str) -> int:
    """How many recorded cases are decided otherwise; an error counts as well."""
    found = 0
    for item in recorded(kind):
        try:
            found += features.decide(kind, item["case"]) != item[WHOLE[kind]]
        except (ArithmeticError, LookupError):
            found += 1
    return found


def broken(name: str, old: str, new: str) -> ModuleType:
    """The module with one change."""
    source = Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8")
    assert source.count(old) == 1, old
    made = ModuleType(name)
    exec(compile(source.replace(old, new), name, "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("kind", WHOLE)
def test_recorded_cases_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert differing(kind) == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max(self._count * self.in_flight[rank.index], ", "max(self.in_flight[rank.index], "),
        ("max(self._count * self.in_flight[rank.index], ", "max(0, "),
        ("waiting + rank.num_running", "waiting"),
        ("waiting + rank.num_running", "rank.num_waiting + rank.num_running"),
        ("_KV_WEIGHT, _KV_FREE = 6.0,", "_KV_WEIGHT, _KV_FREE = 5.0,"),
        ("= 6.0, 0.5", "= 6.0, 0.4"),
        ("max(0.0, rank.kv_utilization - _KV_FREE)", "(rank.kv_utilization - _KV_FREE)"),
        ("+= waiting * _KV_WEIGHT", "+= _KV_WEIGHT"),
        ("+= self._count  #", "+= 1  #"),
        ("self._added.clear()", "pass"),
        ("len(ranks) * self._index // self._count + self._chosen", "self._chosen"),
        ("self._chosen += 1", "pass"),
        ("server.in_flight[rank] -= 1", "pass"),
    ],
)
def test_each_rule_of_the_balancer_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("simulator.fleet.routers.vllm_dp", old, new)
    monkeypatch.setattr(features, "VllmDp", made.VllmDp)
    assert differing("balancer") > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len(self._unfinished) + sequences > most", "len(self._unfinished) + 1 > most"),
        ("len(self._unfinished) + sequences > most", "len(self._unfinished) + sequences >= most"),
        ("len(self._unfinished) + sequences > most", "len(self._prefilling) + sequences > most"),
        ("self._queued_tokens(now_s) >= most", "self._queued_tokens(now_s) > most"),
        ("if not live.first_token_s < now_s", ""),
        ("sum(live.input_tokens for live in waiting.values())", "len(waiting)"),
        ("self._unfinished.discard(row)", "pass"),
        ("self._prefilling.pop(row, None)", "pass"),
        ("self._prefilling[live.row] = live", "self._prefilling.setdefault(0, live)"),
    ],
)
def test_each_rule_of_the_queue_caps_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("simulator.engine.admission", old, new)
    monkeypatch.setattr(features, "Admission", made.Admission)
    assert differing("queue_caps") > 0


def test_of_both_caps_the_requests_are_told_of_first() -> None:
    full = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0, "events": [["add", "a", 1, 9]]}
    assert features.decide("queue_caps", full) == ["max_num_queued_reqs"]


def test_a_kind_that_is_not_decided_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no cases of the kind 'telepathy'; it decides: balancer, queue_caps"):
        features.decide("telepathy", {})
