"""Hybrid caches as vLLM plans them, and each rule is needed for that."""

import pytest

from tests.parity import hybrid_features
from tests.parity.test_features import broken, recorded


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
    ("old", "new"),
    [
        ("min(cache.window - 1 + in_flight, tokens), cache.block_size) + 1", "min(cache.window, tokens), 1) + 1"),
        ("min(cache.window - 1 + in_flight, tokens), cache.block_size) + 1", "tokens, cache.block_size)"),
        ("min(cache.chunk + in_flight, tokens)", "tokens"),
        ("2 + (cache.checkpoint is not None)", "2"),
        ("(cache.checkpoint is not None) if settings.enable_prefix_caching else 1", "(cache.checkpoint is not None)"),
        ("needed > given - page or given", "given"),
        ("min(given // page for", "max(given // page for"),
        ("unit = lcm(unit, settings.state_alignment or 1)", "pass"),
        ("unit = max(KERNEL_BLOCK, size)", "unit = size * 2"),
        ("if caches else settings.max_model_len", ""),
        ("padded_bytes=padded if padded", "padded_bytes=0 if padded"),
        ("scheduled = lcm(*sizes)", "scheduled = max(sizes)"),
        ("hashed = unit or gcd(*sizes)", "hashed = gcd(*sizes)"),
        ("self.batches_in_flight * self", "self"),
        ("int(self.max_concurrency", "int((self.num_blocks - 1) / self.blocks_at(self.settings.max_model_len)"),
    ],
)
def test_each_rule_of_the_plan_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("simulator.hardware.kv_plan", old, new)
    for name in ("KVSettings", "NoRoomError", "group_blocks", "plan_kv"):
        monkeypatch.setattr(hybrid_features, name, getattr(made, name))
    assert differing() > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("layers = _all_full(layers)", "pass"),
        ('layout.startswith("B") and', "False and"),
        ("size = largest if largest < smallest * MORE_THAN_SMALLEST else smallest", "size = largest"),
        ("bucket[place::count]}", "bucket[place * size : (place + 1) * size]}"),
        ("cache.block_size * (largest // bytes_now)", "cache.block_size"),
        ("count = max(count, cdiv(len(bucket), fit))", "pass"),
    ],
)
def test_each_rule_of_the_groups_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("simulator.hardware.kv_groups", old, new)
    monkeypatch.setattr("simulator.hardware.kv_plan.kv_groups", made.kv_groups)
    assert differing() > 0
