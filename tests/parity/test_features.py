"""What vLLM's own code decided once about its features: ours is the same, and each rule is needed for it."""

import gzip
import json
from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from typing import Any

import pytest

from simulator.errors import InputError, PolicyError
from tests.mutations import change
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


BALANCER = "simulator.fleet.routers.vllm_dp"
ADMISSION = "simulator.engine.admission"
CADENCE = "simulator.policies.chunked_prefill.cadence"
STEP = "simulator.policies.chunked_prefill.step"
WAVES = "simulator.engine.waves"
RANKS = "simulator.engine.data_parallel"
ABORTS = "simulator.engine.aborts"


@pytest.mark.parametrize("kind", WHOLE)
def test_recorded_cases_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert differing(kind) == 0


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (
            f"{BALANCER}:ApiServer._score",
            "max(self._count * self.in_flight[rank.index], ",
            "max(self.in_flight[rank.index], ",
        ),
        (f"{BALANCER}:ApiServer._score", "max(self._count * self.in_flight[rank.index], ", "max(0, "),
        (f"{BALANCER}:ApiServer._score", "waiting + rank.num_running", "waiting"),
        (f"{BALANCER}:ApiServer._score", "waiting + rank.num_running", "rank.num_waiting + rank.num_running"),
        (f"{BALANCER}:_KV_WEIGHT", "6.0", "5.0"),
        (f"{BALANCER}:_KV_FREE", "0.5", "0.4"),
        (
            f"{BALANCER}:ApiServer._score",
            "max(0.0, rank.kv_utilization - _KV_FREE)",
            "(rank.kv_utilization - _KV_FREE)",
        ),
        (f"{BALANCER}:ApiServer._score", "+= waiting * _KV_WEIGHT", "+= _KV_WEIGHT"),
        (f"{BALANCER}:ApiServer.choose", "+= self._count  #", "+= 1  #"),
        (f"{BALANCER}:ApiServer.choose", "self._added.clear()", "pass"),
        (f"{BALANCER}:ApiServer.choose", "len(ranks) * self._index // self._count + self._chosen", "self._chosen"),
        (f"{BALANCER}:ApiServer.choose", "self._chosen += 1", "pass"),
        (f"{BALANCER}:VllmDp.choose", "rank = request.data_parallel_rank", "rank = None"),
        (f"{BALANCER}:VllmDp.ended", "server.in_flight[rank] -= 1", "pass"),
    ],
)
def test_each_rule_of_the_balancer_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert differing("balancer") > 0


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (
            f"{ADMISSION}:Admission.refusal",
            "len(self._unfinished) + sequences > most",
            "len(self._unfinished) + 1 > most",
        ),
        (
            f"{ADMISSION}:Admission.refusal",
            "len(self._unfinished) + sequences > most",
            "len(self._unfinished) + sequences >= most",
        ),
        (
            f"{ADMISSION}:Admission.refusal",
            "len(self._unfinished) + sequences > most",
            "len(self._prefilling) + sequences > most",
        ),
        (f"{ADMISSION}:Admission.refusal", "self._queued_tokens(now_s) >= most", "self._queued_tokens(now_s) > most"),
        (f"{ADMISSION}:Admission._queued_tokens", "if not live.first_token_s < now_s", ""),
        (
            f"{ADMISSION}:Admission._queued_tokens",
            "sum(live.input_tokens for live in waiting.values())",
            "len(waiting)",
        ),
        (f"{ADMISSION}:Admission.end", "self._unfinished.discard(row)", "pass"),
        (f"{ADMISSION}:Admission.end", "self._prefilling.pop(row, None)", "pass"),
        (f"{ADMISSION}:Admission.add", "self._prefilling[live.row] = live", "self._prefilling.setdefault(0, live)"),
    ],
)
def test_each_rule_of_the_queue_caps_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert differing("queue_caps") > 0


@pytest.mark.parametrize("kind", STEPS)
def test_recorded_steps_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert all(same_steps(kind, item) for item in recorded(kind)[::4])


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{CADENCE}:plan_with_cadence", " and not note.is_full", ""),
        (f"{CADENCE}:plan_with_cadence", " and len(view.running) > len(view.prefilling)", ""),
        (f"{CADENCE}:plan_with_cadence", "this < due if", "this <= due if"),
        (f"{CADENCE}:plan_with_cadence", "this < due if", "this < due - 1 if"),
        (f"{CADENCE}:plan_with_cadence", "is_full = len(view.waiting) > admitted", "is_full = False"),
        (f"{CADENCE}:plan_with_cadence", "is_full = len(view.waiting) > admitted", "is_full = len(view.waiting) > 0"),
        (f"{CADENCE}:plan_with_cadence", "if not held and not plan.preempt", "if not plan.preempt"),
        (f"{CADENCE}:plan_with_cadence", "if not held and not plan.preempt", "if not held"),
        (f"{CADENCE}:plan_with_cadence", "if _computes_prompts(view, plan)", "if plan.prefill"),
        (f"{CADENCE}:_computes_prompts", "if request in running", "if False"),
        (f"{CADENCE}:_computes_prompts", "- hits > 1", "- hits > 4"),
        (f"{CADENCE}:_computes_prompts", "view.prefix_hits(request)[0]", "0"),
    ],
)
def test_each_rule_of_the_cadence_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("cadence", "cadence_async")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{STEP}:schedule_running", "if held and not request.is_decoding", "if False"),
        (f"{STEP}:fast_path", "if prefilling and not held", "if prefilling"),
        (f"{STEP}:schedule_waiting", "if held and whole > 1", "if held"),
        (f"{STEP}:schedule_waiting", "if held and whole > 1", "if False"),
    ],
)
def test_each_rule_of_a_held_step_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("cadence", "cadence_async")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{WAVES}:Waves.throttles", "% self._prefill_interval != 0", "% self._prefill_interval > 1"),
        (f"{WAVES}:Waves.stepped", "self._steps != 1 and ", ""),
        (f"{WAVES}:Waves.stepped", "self._steps % self._sync_interval", "self._steps % 16"),
        (f"{WAVES}:Waves.stepped", "            self._steps = 0", "            pass"),
    ],
)
def test_each_rule_of_the_waves_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("dp")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{RANKS}:DataParallelGroup._has_work", "live.arrival_s <= seen_s", "True"),
        (f"{RANKS}:DataParallelGroup._has_work", "state.running or any(", "any("),
        (f"{RANKS}:DataParallelGroup._execute", "computes = self._waves is not None or", "computes ="),
        (f"{RANKS}:DataParallelGroup._throttle", "waves.runs or self._has_work(now_s)", "self._has_work(now_s)"),
        (f"{RANKS}:DataParallelGroup._throttle", ".throttled = throttled", ".throttled = None"),
    ],
)
def test_each_rule_of_ranks_in_lockstep_is_needed(
    place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("dp")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{ABORTS}:Aborts.end_with", "[live for live in done if live not in gone], len", "done, len"),
        (f"{ABORTS}:Aborts._take_out", "            self._late.forget(live)", "            pass"),
        (f"{ABORTS}:Aborts._take_out", "            state.drop_waiting(live, now_s)\n", "            pass\n"),
        (
            f"{ABORTS}:Aborts._take_out",
            "        del state.running[live]",
            "        state.running[live] = state.running.pop(live)",
        ),
        (f"{ABORTS}:Aborts._take_out", "            state.blocks.free(live.row, live.num_blocks)", "            pass"),
        (f"{ABORTS}:Aborts.ask", "live is None or live.status is ABORTED", "live is None or live.status is WAITING"),
        (f"{ABORTS}:Aborts.ask", "live is None or live.status is ABORTED", "live is None or live.status is DECODING"),
        (f"{ABORTS}:Aborts.ask", "live is None or live.status is ABORTED", "live is None or live.status is PREFILLING"),
        (
            f"{ABORTS}:Aborts.end_with",
            "        return [live for live",
            "        self.pending.update(gone)\n        return [live for live",
        ),
    ],
)
def test_each_rule_of_aborts_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("abort", "abort_async")


def test_of_both_caps_the_requests_are_told_of_first() -> None:
    full = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0, "events": [["add", "a", 1, 9]]}
    assert features.decide("queue_caps", full) == ["max_num_queued_reqs"]


def test_a_kind_that_is_not_decided_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no cases of the kind 'telepathy'; it decides: balancer, queue_caps, "):
        features.decide("telepathy", {})
