"""The true output length cannot be read by a policy or a router, by any path of attributes from what they are given."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator.fleet.routers.least_loaded import LeastLoaded
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.radix_cache import RadixCache
from simulator.plan import StepPlan, Traits, View
from simulator.policies import load_policy
from simulator.request import PromptContent, Request
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Memory, Scenario, make_workload

# Answers of lengths that nothing else in the run is equal to.
OUTPUTS = (70_001, 70_003, 70_007)
TOKENS = tuple(range(OUTPUTS[0]))


def reached(root: object) -> Iterator[tuple[str, object]]:
    """Every object that attributes and elements lead to from `root`, private attributes too, with its path.

    Functions and methods end a path: what they close over is their own. So does everything of a class or a module.
    """
    seen: dict[int, object] = {}
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if id(value) in seen or callable(value) or isinstance(value, (type, type(np))):
            continue
        seen[id(value)] = value  # kept, so that no other object is given its id
        yield path, value
        if isinstance(value, (str, bytes, int, float)):
            continue
        for name in dir(value):
            if not (
                name.startswith("__") or (isinstance(value, (list, tuple, dict, set)) and name in dir(type(value)))
            ):
                try:
                    stack.append((f"{path}.{name}", getattr(value, name)))
                except Exception:  # of an empty queue, or of a slot that is not set
                    continue
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            stack += [(f"{path}.{name}", getattr(value, name)) for name in value._fields]
        if isinstance(value, Mapping):
            stack += [(f"{path}[{key!r}]", item) for key, item in value.items()]
        if hasattr(value, "__iter__") and len(list(value)) < 100:
            stack += [(f"{path}[{place}]", item) for place, item in enumerate(value)]


def tells(value: object, now_ticks: int) -> bool:
    """Whether a value gives a true length away: as a number, as a tick at which an answer ends, or as its tokens."""
    if isinstance(value, int):
        return any(value in (output, output - 1, output - 1 + now_ticks) for output in OUTPUTS)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return False
    return len(value) in OUTPUTS


def found(root: object, ticks: int) -> list[str]:
    return [path for path, value in reached(root) if isinstance(value, Request) or tells(value, ticks)]


class EnoughError(BaseException):
    """Ends a run: the policy has looked often enough."""


@dataclass(frozen=True)
class Nosy:
    """A policy that looks through all it is given, 40 times, and then decides as another."""

    inner: Any
    leaks: list[str] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    @property
    def traits(self) -> Traits:
        traits: Traits = self.inner.traits
        return traits

    def refuses(self, request: Any, num_blocks: int, block_size: int) -> str | None:
        self.leaks.extend(found(request, 0))
        return None

    def plan(self, view: View) -> StepPlan:
        if len(self.looks) == 40:
            raise EnoughError
        self.looks.append(len(view.running) + len(view.waiting))
        self.leaks.extend(found(view, view.decode_steps))
        plan: StepPlan = self.inner.plan(view)
        return plan


def scenario_of(policy: str, **options: Any) -> Scenario:
    """Three requests, two slots: some wait, some decode; all say what their tokens are."""
    workload = make_workload([0.0, 0.5, 2.5], [(9, output) for output in OUTPUTS], max_tokens=80_000)
    content = [PromptContent(prompt_token_ids=(*range(8), row), output_token_ids=TOKENS) for row in range(3)]
    workload = replace(workload, content=content)
    inner = load_policy(policy, {"max_num_seqs": 2, "max_num_batched_tokens": 64, **options})
    return Scenario(workload, Nosy(inner), Memory(40_000, 16, 10), Linear(1.0))


CASES = {
    "counted blocks": scenario_of("continuous"),
    "priorities and swapping": scenario_of("preemptive", preemption_mode="swap"),
    "asynchronous": scenario_of("chunked_prefill", async_scheduling=True),
    "counters of classes": scenario_of("chunked_prefill", order="vtc"),
    "levels": scenario_of("fastserve"),
    "finished requests are kept": scenario_of("static"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_policy_finds_no_true_length(name: str) -> None:
    scenario = CASES[name]
    policy: Any = scenario.policy
    with suppress(EnoughError):
        scenario.run()
    assert sum(policy.looks) > 20, "it saw requests"
    assert policy.leaks == []


@pytest.mark.parametrize("make_blocks", [PrefixCache, PrefixLedger, RadixCache])
def test_nor_through_a_prefix_cache(make_blocks: Any) -> None:
    scenario = scenario_of("sglang" if make_blocks is RadixCache else "chunked_prefill", order="lpm")
    policy: Any = scenario.policy
    with suppress(EnoughError):
        scenario.run(make_blocks=partial(make_blocks, block_size=16))
    assert sum(policy.looks) > 20
    assert policy.leaks == []


def test_a_router_finds_no_true_length(monkeypatch: pytest.MonkeyPatch) -> None:
    leaks: list[str] = []
    asked: list[int] = []

    class Nosy(LeastLoaded):
        def choose(self, request: Any, replicas: Any) -> Any:
            asked.append(request.row)
            leaks.extend(found(request, 0) + found(list(replicas), 0))
            return super().choose(request, replicas)

    monkeypatch.setattr("simulator.fleet.routers.least_loaded.LeastLoaded", Nosy)
    scenario = replace(scenario_of("continuous"), replicas=2, router="least_loaded")
    with suppress(EnoughError):
        scenario.run()
    assert asked == [0, 1, 2]
    assert leaks == []


def test_what_a_router_is_told() -> None:
    """Everything but the answer."""
    content = PromptContent(prefix_group="a", prefix_tokens=3, prompt_token_ids=(1, 2), output_token_ids=(3, 4))
    request = Request(5, "five", 1.5, 2, 70_001, 80_000, 1, "chat", "s", 9, 2.5, content)
    told = request.arriving()
    assert told._asdict() == {
        "row": 5,
        "request_id": "five",
        "arrival_s": 1.5,
        "input_tokens": 2,
        "max_tokens": 80_000,
        "priority": 1,
        "class_name": "chat",
        "session_id": "s",
        "predicted_output_tokens": 9,
        "deadline_s": 2.5,
        "content": dataclasses.replace(content, output_token_ids=()),
        "data_parallel_rank": None,
        "lora": None,
        "images": (),
    }


def test_the_search_would_find_it() -> None:
    """The engine's own table, and a tick at which an answer ends."""

    @dataclass
    class Leaky:
        _hidden: dict[int, Any]

    request = Request(0, "0", 0.0, 9, OUTPUTS[0], 80_000)
    assert "._hidden[0]" in found(Leaky({0: request}), 0)
    assert len(found(Leaky({0: tuple(request)}), 0)) == 1
    assert found(Leaky({0: OUTPUTS[1] - 1 + 17}), 17) == ["._hidden[0]"]
    assert found(Leaky({0: list(TOKENS)}), 0) == ["._hidden[0]"]
