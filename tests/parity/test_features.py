"""What vLLM's own code decided once about its features: ours is the same, and each rule is needed for it."""

import gzip
import importlib
import json
from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simulator.errors import InputError, PolicyError
from tests.parity import features
from tests.parity.cases import COMPARED
from tests.shared_data import shared

WHOLE = {"balancer": "chosen", "queue_caps": "decisions"}
STEPS = ("cadence", "cadence_async", "abort", "abort_async", "dp")
COLUMNS = {
    kind: (*COMPARED, *more)
    for kind, more in {"cadence": ["held", "t_end"], "abort": ["aborted", "t_end"], "dp": ["dummy"]}.items()
}


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


def same_steps(kind: str, item: dict[str, Any]) -> bool:
    """Whether each step of a case is decided as vLLM did; steps without tokens and ends are left out on both sides."""
    ours, theirs = features.decide(kind, item["case"]), item["records"]
    if kind == "dp":
        if len(ours) != len(theirs):
            return False
        ours, theirs = ([rank for step in steps for rank in step["ranks"]] for steps in (ours, theirs))
    else:
        ours, theirs = (
            [step for step in steps if step["scheduled"] or step["finished"] or step["preempted"]]
            for steps in (ours, theirs)
        )
    columns = COLUMNS[kind.removesuffix("_async")]
    return len(ours) == len(theirs) and all(
        pytest.approx(step[name], abs=1e-6) == mine[name] if name == "t_end" else step[name] == mine[name]
        for mine, step in zip(ours, theirs, strict=True)
        for name in columns
        if name in step
    )


def is_noticed(*kinds: str) -> bool:
    """Whether any recorded case of these kinds is decided otherwise; an error counts as well."""
    for item, kind in chain.from_iterable(zip(recorded(kind), repeat(kind), strict=False) for kind in kinds):
        try:
            if not same_steps(kind, item):
                return True
        except (AssertionError, ArithmeticError, LookupError, TypeError, RuntimeError, InputError, PolicyError):
            return True
    return False


def source_of(name: str) -> Path:
    """The module's source. Skips the test where it is compiled, as other modules keep to what they compiled."""
    path = Path(str(importlib.import_module(name).__file__))
    if path.suffix != ".py":
        pytest.skip("a rule that is compiled cannot be changed")
    return path


def broken(name: str, old: str, new: str) -> ModuleType:
    """The module with one change, as `source_of` finds it."""
    source = source_of(name).read_text(encoding="utf-8")
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
        ("rank = request.data_parallel_rank", "rank = None"),
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


@pytest.mark.parametrize("kind", STEPS)
def test_recorded_steps_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert all(same_steps(kind, item) for item in recorded(kind)[::4])


CADENCE = "simulator.policies.chunked_prefill.cadence"
STEP = "simulator.policies.chunked_prefill.step"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" and not note.is_full", ""),
        (" and len(view.running) > len(view.prefilling)", ""),
        ("this < due if", "this <= due if"),
        ("this < due if", "this < due - 1 if"),
        ("is_full = len(view.waiting) > admitted", "is_full = False"),
        ("is_full = len(view.waiting) > admitted", "is_full = len(view.waiting) > 0"),
        ("if not held and not plan.preempt", "if not plan.preempt"),
        ("if not held and not plan.preempt", "if not held"),
        ("if _computes_prompts(view, plan)", "if plan.prefill"),
        ("if request in running", "if False"),
        ("- hits > 1", "- hits > 4"),
        ("view.prefix_hits(request)[0]", "0"),
    ],
)
def test_each_rule_of_the_cadence_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(CADENCE, old, new)
    monkeypatch.setattr("simulator.policies.chunked_prefill.plan_with_cadence", made.plan_with_cadence)
    assert is_noticed("cadence", "cadence_async")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if held and not request.is_decoding", "if False"),
        ("if prefilling and not held", "if prefilling"),
        ("if held and whole > 1", "if held"),
        ("if held and whole > 1", "if False"),
    ],
)
def test_each_rule_of_a_held_step_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CADENCE}.step", broken(STEP, old, new).step)
    assert is_noticed("cadence", "cadence_async")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("% self._prefill_interval != 0", "% self._prefill_interval > 1"),
        ("self._steps != 1 and ", ""),
        ("self._steps % self._sync_interval", "self._steps % 16"),
        ("            self._steps = 0", "            pass"),
    ],
)
def test_each_rule_of_the_waves_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "simulator.engine.data_parallel.Waves", broken("simulator.engine.data_parallel", old, new).Waves
    )
    assert is_noticed("dp")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("live.arrival_s <= seen_s", "True"),
        ("state.running or any(", "any("),
        ("computes = self._waves is not None or", "computes ="),
        ("waves.runs or self._has_work(now_s)", "self._has_work(now_s)"),
        (".throttled = throttled", ".throttled = None"),
    ],
)
def test_each_rule_of_ranks_in_lockstep_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("simulator.engine.data_parallel", old, new)
    monkeypatch.setattr("simulator.engine.data_parallel.DataParallelGroup", made.DataParallelGroup)
    assert is_noticed("dp")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[live for live in done if live not in gone], len", "done, len"),
        ("            self._late.forget(live)", "            pass"),
        ("            state.drop_waiting(live, now_s)\n", "            pass\n"),
        ("        del state.running[live]", "        state.running[live] = state.running.pop(live)"),
        ("            state.blocks.free(live.row, live.num_blocks)", "            pass"),
        ("live is None or live.status is ABORTED", "live is None or live.status is WAITING"),
        ("live is None or live.status is ABORTED", "live is None or live.status is DECODING"),
        ("live is None or live.status is ABORTED", "live is None or live.status is PREFILLING"),
        ("        return [live for live", "        self.pending.update(gone)\n        return [live for live"),
    ],
)
def test_each_rule_of_aborts_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.engine.replica.Aborts", broken("simulator.engine.aborts", old, new).Aborts)
    assert is_noticed("abort", "abort_async")


def test_of_both_caps_the_requests_are_told_of_first() -> None:
    full = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0, "events": [["add", "a", 1, 9]]}
    assert features.decide("queue_caps", full) == ["max_num_queued_reqs"]


def test_a_kind_that_is_not_decided_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no cases of the kind 'telepathy'; it decides: balancer, queue_caps, "):
        features.decide("telepathy", {})
