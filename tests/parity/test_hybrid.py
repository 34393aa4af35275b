"""Hybrid caches as vLLM plans them, and each rule is needed for that."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PolicyError
from simulator.memory.grouped import GroupedBlocks
from simulator.memory.ledger import OutOfBlocksError
from tests.mutations import change
from tests.parity import held, hybrid_features
from tests.parity.test_features import recorded

OWN = Path(__file__).parent.parent / "data" / "hybrid_rules.jsonl.gz"
PLAN = "simulator.hardware.kv_plan"
GROUPS = "simulator.hardware.kv_groups"
TABLES = "simulator.memory.group_tables"
STATES = "simulator.memory.group_tables"
CHUNKS = "simulator.policies.chunked_prefill.schedule"


def differing() -> int:
    found = 0
    for item in recorded("hybrid_plan"):
        try:
            found += hybrid_features.hybrid_plan(item["case"]) != item["planned"]
        except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError):
            found += 1
    return found


def test_recorded_caches_are_planned_as_vllm_did() -> None:
    assert len(recorded("hybrid_plan")) == 60
    assert differing() == 0


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (
            f"{PLAN}:_blocks",
            "min(cache.window - 1 + in_flight, tokens), cache.block_size) + 1",
            "min(cache.window, tokens), 1) + 1",
        ),
        (
            f"{PLAN}:_blocks",
            "min(cache.window - 1 + in_flight, tokens), cache.block_size) + 1",
            "tokens, cache.block_size)",
        ),
        (f"{PLAN}:_blocks", "min(cache.chunk + in_flight, tokens)", "tokens"),
        (f"{PLAN}:_blocks", "2 + (cache.checkpoint is not None)", "2"),
        (
            f"{PLAN}:_blocks",
            "(cache.checkpoint is not None) if settings.enable_prefix_caching else 1",
            "(cache.checkpoint is not None)",
        ),
        (f"{PLAN}:plan_kv", "needed > given - page or given", "given"),
        (f"{PLAN}:plan_kv", "min(given // page for", "max(given // page for"),
        (f"{PLAN}:_sized", "unit = lcm(unit, settings.state_alignment or 1)", "pass"),
        (f"{PLAN}:_sized", "unit = max(KERNEL_BLOCK, size)", "unit = size * 2"),
        (f"{PLAN}:_sized", "if caches else settings.max_model_len", ""),
        (f"{PLAN}:_sized", "padded_bytes=padded if padded", "padded_bytes=0 if padded"),
        (f"{PLAN}:block_sizes", "scheduled = lcm(*sizes)", "scheduled = max(sizes)"),
        (f"{PLAN}:block_sizes", "hashed = unit or gcd(*sizes)", "hashed = gcd(*sizes)"),
        (f"{PLAN}:KVSettings.in_flight_tokens", "self.batches_in_flight * self", "self"),
        (
            f"{PLAN}:KVPlan.capacity_tokens",
            "int(self.max_concurrency",
            "int((self.num_blocks - 1) / self.blocks_at(self.settings.max_model_len)",
        ),
    ],
)
def test_each_rule_of_the_plan_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert differing() > 0


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{GROUPS}:kv_groups", "layers = _all_full(layers)", "pass"),
        (f"{GROUPS}:kv_groups", 'layout.startswith("B") and', "False and"),
        (
            f"{GROUPS}:_equal_groups",
            "size = largest if largest < smallest * MORE_THAN_SMALLEST else smallest",
            "size = largest",
        ),
        (f"{GROUPS}:_equal_groups", "bucket[place::count]}", "bucket[place * size : (place + 1) * size]}"),
        (f"{GROUPS}:_equal_pages", "cache.block_size * (largest // bytes_now)", "cache.block_size"),
        (f"{GROUPS}:_packed", "count = max(count, cdiv(len(bucket), fit))", "pass"),
    ],
)
def test_each_rule_of_the_groups_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert differing() > 0


def same_steps(item: dict[str, Any]) -> bool:
    """Whether each step of a case is decided as vLLM did, jumping over steps or not."""
    ours = hybrid_features.hybrid(item["case"], fast_forward=item["seed"] % 2 == 0)
    return held.first_difference(ours, item["records"], lambda _, __: held.COLUMNS, unordered=("finished",)) is None


@cache
def own_cases() -> list[dict[str, Any]]:
    """Small cases for rules that no recorded one tells; what vLLM 0.33 decided, column by column."""
    return held.lines_of(OWN)


def running_cases() -> list[dict[str, Any]]:
    return [*own_cases(), *(item for item in recorded("hybrid") if "records" in item)]


def test_own_cases_are_decided_as_vllm_did() -> None:
    assert [item["rule"] for item in own_cases()] == ["forget", "late", "boundary"]
    assert all(map(same_steps, own_cases()))


def test_recorded_steps_with_several_groups_are_decided_as_vllm_did() -> None:
    assert len(running_cases()) == 60 + len(own_cases())
    assert all(same_steps(item) for item in running_cases()[::4])


def is_noticed() -> bool:
    for item in running_cases():
        try:
            if not same_steps(item):
                return True
        except (AssertionError, ArithmeticError, LookupError, ValueError, TypeError, PolicyError, OutOfBlocksError):
            return True
    return False


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (
            f"{TABLES}:WindowTables.passed",
            "max(0, computed - self.cache.window + 1)",
            "max(0, computed - self.cache.window)",
        ),
        (f"{TABLES}:ChunkedTables.passed", "computed // self.cache.chunk * self.cache.chunk", "0"),
        (f"{TABLES}:GroupTables.needed", "needed = min(needed, self.most)", "pass"),
        (f"{TABLES}:WindowTables.look", "if run >= needed:", "if run > needed:"),
        (
            f"{TABLES}:window_tails",
            "range(max(first, end - needed), min(stop, end))",
            "range(max(first, end - 1), min(stop, end))",
        ),
        (f"{TABLES}:window_tails", "segment = (unit if retention is None else retention) // size", "segment = 0"),
        (f"{TABLES}:GroupTables.enter", "[prompt - 1, junction] if junction else [prompt - 1]", "[prompt - 1]"),
        (
            f"{TABLES}:GroupTables.enter",
            "        if step > 1:\n            self.enter_tail",
            "        if step > 99:\n            self.enter_tail",
        ),
    ],
)
def test_each_rule_of_the_tables_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed()


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{STATES}:StateTables.needed", "if hit and self.pool.first_key(hit[-1]) in self.fresh:", "if False:"),
        (f"{STATES}:StateTables.needed", "min(needed, 1 + copies + (self._saved(asked, gone) > 0))", "needed"),
        (
            f"{STATES}:StateTables.enter",
            "            if key is not None:\n                self.fresh.add(key)",
            "            pass",
        ),
        (f"{STATES}:StateTables.enter_tail", "self.pool.forget(table[place])", "pass"),
        (
            f"{STATES}:StateTables.dropped",
            "max(0, computed - 1) // self.size, len(table))\n        return",
            "max(0, computed - 1 - self.size) // self.size, len(table))\n        return",
        ),
    ],
)
def test_each_rule_of_the_states_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed()


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{CHUNKS}:split", "if aligned > start or size <= longest:", "if True:"),
        (f"{CHUNKS}:split", "stops = [last_stop]", "stops = [0]"),
        (f"{CHUNKS}:split", "if last_stop < tail < prompt:", "if False:"),
        (f"{CHUNKS}:split", "if start < junction < end:", "if False:"),
        (f"{CHUNKS}:split", "        last_stop = 0", "        pass"),
        (f"{CHUNKS}:split", "stops.append((start // size + 1) * size)", "pass"),
        (f"{CHUNKS}:split", "prefill_end = max(prompt, known - 1)", "prefill_end = prompt"),
    ],
)
def test_each_rule_of_a_chunks_end_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed()


@pytest.mark.parametrize("number", range(0, 60, 9))
def test_jumps_change_nothing_and_blocks_are_conserved(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks are free at the end, and at each plan's end pool and tables of all groups agree."""
    case = running_cases()[number]["case"]
    made: list[GroupedBlocks] = []
    init, end_plan = GroupedBlocks.__init__, GroupedBlocks.end_plan

    def kept(self: GroupedBlocks, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    def checked(self: GroupedBlocks) -> None:
        end_plan(self)
        self.check()

    monkeypatch.setattr(GroupedBlocks, "__init__", kept)
    monkeypatch.setattr(GroupedBlocks, "end_plan", checked)
    assert hybrid_features.hybrid(case) == hybrid_features.hybrid(case, fast_forward=False)
    assert [blocks.num_free for blocks in made] == [blocks.num_blocks for blocks in made]
