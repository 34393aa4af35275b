"""Images as vLLM's own scheduler decided it once: ours is the same, and each rule is needed for it."""

from importlib import import_module

import pytest

from tests.parity.image_features import encoder
from tests.parity.test_features import COLUMNS, broken, is_noticed, recorded, same_steps, source_of

COLUMNS["encoder"] = (*COLUMNS["cadence"], "encoded", "cache_free")
CACHE = "simulator.policies.chunked_prefill.encoder"
PLANS = "simulator.policies.chunked_prefill.images"


def test_recorded_steps_are_decided_as_vllm_did() -> None:
    assert len(recorded("encoder")) == 60
    assert all(same_steps("encoder", item) for item in recorded("encoder")[::3])


def test_runs_of_steps_change_nothing() -> None:
    for item in recorded("encoder")[1::6]:
        assert encoder(item["case"], fast_forward=True) == encoder(item["case"], fast_forward=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if self._whole and", "if False and"),
        ("if image.identifier in names", "if False"),
        ("if self.cache.finds(request, number):\n                continue", "if False:\n                continue"),
        ("self.cache.makes_room(size, more)", "True"),
        ("needed = size + more", "needed = size"),
        ("name = next(iter(self.released))", "name = next(reversed(self.released))"),
        ("image.end <= computed_tokens", "image.offset <= computed_tokens"),
        ("        self.cache.release(victim)", "        pass"),
    ],
)
def test_each_rule_of_the_encoder_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(CACHE, old, new)
    plans = import_module(PLANS)
    for name in ("Encoder", "EncoderCache", "EncoderNote"):
        monkeypatch.setattr(plans, name, getattr(made, name))
    assert is_noticed("encoder")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("to_come = 1 if is_async", "to_come = 0 if is_async"),
        ("            cache.release(request, request.num_computed_tokens)", "            pass"),
    ],
)
def test_each_rule_of_a_step_with_images_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(PLANS, old, new)
    monkeypatch.setattr("simulator.policies.chunked_prefill.plan_with_images", made.plan_with_images)
    assert is_noticed("encoder")


def test_a_block_with_another_image_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    source_of("simulator.memory.block_keys")
    monkeypatch.setattr("simulator.memory.block_keys._with_images", lambda request, first, size, name: name)
    assert is_noticed("encoder")
