"""Images as vLLM's own scheduler decided it once: ours is the same, and each rule is needed for it."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PolicyError
from tests.mutations import change
from tests.parity import features
from tests.parity.held import lines_of
from tests.parity.image_features import encoder
from tests.parity.test_features import COLUMNS, is_noticed, recorded, same_steps

OWN = Path(__file__).parent.parent / "data" / "adapter_rules.jsonl.gz"
COLUMNS["encoder"] = (*COLUMNS["cadence"], "encoded", "cache_free")
CACHE = "simulator.policies.chunked_prefill.encoder"
PLANS = "simulator.policies.chunked_prefill.images"


def test_recorded_steps_are_decided_as_vllm_did() -> None:
    assert len(recorded("encoder")) == 60
    assert all(same_steps("encoder", item) for item in recorded("encoder")[::3])


@cache
def own_cases() -> Sequence[dict[str, Any]]:
    """Small cases for rules that no recorded one tells, as vLLM 0.33 decided them."""
    return [item for item in lines_of(OWN) if item["kind"] == "encoder"]


def own_same(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rules of which a case is decided otherwise, jumping over steps or not."""
    wrong = []
    for fast in (True, False):
        monkeypatch.setitem(features.DECIDES, "encoder", partial(encoder, fast_forward=fast))
        for item in own_cases():
            try:
                is_same = same_steps("encoder", item)
            except (AssertionError, LookupError, PolicyError):
                is_same = False
            if not is_same:
                wrong.append(item["rule"])
    return wrong


def test_own_cases_are_decided_as_vllm_did(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [item["rule"] for item in own_cases()]
    assert rules == ["inside", "text", "between", "taken back", "stuck", "stuck with more", "queue", "repeat"]
    assert own_same(monkeypatch) == []


@pytest.mark.parametrize(
    ("rule", "place", "old", "new"),
    [
        (
            "inside",
            f"{CACHE}:Encoder.tokens",
            "computed <= image.offset and computed + tokens < image.end",
            "computed + tokens < image.end",
        ),
        ("text", f"{CACHE}:Encoder.tokens", "max(0, computed - image.offset)", "0"),
        ("between", f"{CACHE}:Encoder.tokens", "min(image.tokens, end - image.offset)", "image.tokens"),
        ("taken back", f"{CACHE}:Encoder.preempt", "taken_back = self.encoded.pop(", "taken_back = self.encoded.get("),
        ("taken back", f"{CACHE}:Encoder.preempt", "self.embeddings -= sum([", "sum(["),
        ("stuck", f"{CACHE}:Encoder.tokens", "            self.tried = True\n", ""),
        (
            "stuck",
            f"{PLANS}:plan_with_images",
            "holds=Holds.STEP if encoder.tried else goes_on(view, limits).holds",
            "holds=Holds.ARRIVAL",
        ),
        ("stuck with more", f"{CACHE}:Encoder.__init__", "self.tried = note.tried", "self.tried = False"),
        (
            "repeat",
            f"{CACHE}:Encoder.schedule",
            "            self.cache.finds(request, number)\n",
            "            pass\n",
        ),
        ("queue", f"{PLANS}:_admit_next", "stays = encoder.tried or encoder.passed or", "stays ="),
    ],
)
def test_each_rule_of_own_cases_is_needed(
    rule: str, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert rule in own_same(monkeypatch)


def test_runs_of_steps_change_nothing() -> None:
    for item in recorded("encoder")[1::6]:
        assert encoder(item["case"], fast_forward=True) == encoder(item["case"], fast_forward=False)


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{CACHE}:Encoder.tokens", "if self._whole and", "if False and"),
        (f"{CACHE}:Encoder.tokens", "if image.identifier in names", "if False"),
        (
            f"{CACHE}:Encoder.tokens",
            "if self.cache.finds(request, number):\n                continue",
            "if False:\n                continue",
        ),
        (f"{CACHE}:Encoder.tokens", "self.cache.makes_room(size, more)", "True"),
        (f"{CACHE}:EncoderCache.makes_room", "needed = size + more", "needed = size"),
        (
            f"{CACHE}:EncoderCache.makes_room",
            "name = next(iter(self.released))",
            "name = next(reversed(self.released))",
        ),
        (f"{CACHE}:EncoderCache.release", "image.end <= computed_tokens", "image.offset <= computed_tokens"),
        (f"{CACHE}:Encoder.preempt", "        self.cache.release(victim)", "        pass"),
    ],
)
def test_each_rule_of_the_encoder_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("encoder")


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{PLANS}:_begin", "to_come = 1 if is_async", "to_come = 0 if is_async"),
        (f"{PLANS}:_begin", "            cache.release(request, request.num_computed_tokens)", "            pass"),
    ],
)
def test_each_rule_of_a_step_with_images_is_needed(
    place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("encoder")


def test_a_block_with_another_image_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    change(
        monkeypatch,
        "simulator.memory.block_keys:_with_images",
        "return (name, *found) if found else name",
        "return name",
    )
    assert is_noticed("encoder")
