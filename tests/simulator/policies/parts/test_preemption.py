"""How victims leave: auto weighs, pause keeps; by hand, and what may not be combined."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import with_policy
from scenarios.assembly.replica_parts import build
from simulator.errors import InputError
from simulator.plan import StepPlan, Traits, View
from simulator.policies import built_in_policies, load_policy, policy_class, system_of
from simulator.policies.parts.preemption import VICTIMS, preemptions, swap_pays, waits_long
from simulator.policies.preemptive import Preemptive
from simulator.policies.vllm_v0 import VllmV0
from simulator.simulate import Run, simulate
from simulator.timing.cost import StepShape
from simulator.timing.executor import Lockstep, Predicted, Replay
from simulator.timing.formula_cost import Linear
from tests.hand import serve
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload
from tests.scenarios.schema.test_scenario import scenario
from tests.simulator.timing.test_executor import AStep

COST = Linear(1.0, 0.5, 0.25)

# Auto


@dataclass(frozen=True)
class Asked:
    """What `swap_pays` looks at."""

    again_s: float | None = 1.0
    moved_s: float | None = 1.0
    running: tuple[int, ...] = (0, 1)
    num_blocks: int = 10
    block_size: int = 4

    def recompute_s(self, request: object, *, mixed: bool) -> float | None:
        return self.again_s if mixed else None if self.again_s is None else self.again_s + 5

    def swap_s(self, request: object) -> float | None:
        return self.moved_s


@dataclass(frozen=True)
class Sized:
    num_tokens: int


def pays(view: Asked, ahead: list[int], **options: Any) -> bool:
    requests: Any = [Sized(tokens) for tokens in ahead]
    looks: Any = view
    mine: Any = Sized(8)
    return swap_pays(looks, mine, requests, **options)


def test_the_cheaper_way() -> None:
    assert pays(Asked(1.0, 1.0), []), "of equals, swap"
    assert not pays(Asked(0.99, 1.0), [])
    assert pays(Asked(0.99, 1.0), [], mixed=False), "in a step of its own it takes longer"
    assert not pays(Asked(6.0, 1.0), [1, 1, 1]), "a batch of two, and three ahead of it"
    assert not pays(Asked(None, None), []), "nothing predicts"
    assert not pays(Asked(1.0, None), [])


def test_who_waits_long() -> None:
    """2 of its own blocks and 10 on the device; two requests run."""
    view: Any = Asked()
    mine: Any = Sized(8)
    for ahead, long in [([], False), ([32], False), ([33], True), ([1, 1], False), ([1, 1, 1], True), ([29, 5], True)]:
        requests: Any = [Sized(tokens) for tokens in ahead]
        assert waits_long(view, mine, requests) == long, ahead


def test_what_the_executor_predicts() -> None:
    """1 s a step, 0.5 s a token, 0.25 s a token of context."""
    stalls, overlaps = Predicted(COST, 0.5), Predicted(COST, 0.5, swap_overlap=True)
    decodes = StepShape(2, 40)
    assert stalls.recompute_s(6, decodes) == 0.5 * 6 + 0.25 * 6, "the step is there anyway"
    assert stalls.recompute_s(6, StepShape(0, 0)) == 1.0 + 0.5 * 6 + 0.25 * 6
    assert stalls.swap_s(30, decodes) == 30.0
    assert overlaps.swap_s(30, decodes) == 2 * (15.0 - 12.0), "12 s of each way are hidden"
    assert overlaps.swap_s(24, decodes) == 0.0


def test_overlapping_takes_the_longer_of_the_two() -> None:
    shape = StepShape(2, 40)
    overlaps = Predicted(COST, 0.5, swap_overlap=True)
    assert overlaps.execute(AStep(shape)) == COST.step_s(shape) == 12.0
    assert overlaps.execute(AStep(shape, 10, 14)) == 12.0
    assert overlaps.execute(AStep(shape, 10, 16)) == 13.0
    assert overlaps.execute(AStep(StepShape(0, 0), 3, 1)) == 2.0


def test_who_has_an_outlook() -> None:
    """A lockstep against a device has its shadow's, so that both plan alike."""
    predicted, replay = Predicted(COST), Replay([1.0])
    assert predicted.traits.outlook is predicted
    assert replay.traits.outlook is None
    assert Lockstep(replay, predicted).traits.outlook is predicted
    assert Lockstep(predicted, Predicted(Linear(2.0))).traits.outlook is predicted
    assert Lockstep(replay, replay).traits.outlook is None


@dataclass(frozen=True)
class Curious:
    """Serves one at a time, and notes what it is told of the one that runs."""

    told: list[tuple[float | None, float | None, float | None]]
    max_num_seqs: int = 1
    traits = Traits()

    def plan(self, view: View) -> StepPlan:
        for request in view.running:
            alone_s = view.recompute_s(request, mixed=False)
            self.told.append((view.recompute_s(request), alone_s, view.swap_s(request)))
        return load_policy("continuous", {"max_num_seqs": 1}).plan(view)


def test_what_a_policy_is_told() -> None:
    """A prompt of 5, then 3 decodes: 6, 7, 8 tokens in 2 blocks when they are planned."""
    for overlap in (False, True):
        told: list[tuple[float | None, float | None, float | None]] = []
        workload = make_workload([0.0], [(5, 4)])
        Scenario(workload, Curious(told), Memory(9, 4), COST, 4.0, overlap).run(fast_forward=False)
        steps_s = [1.5 + 0.25 * n if overlap else 0.0 for n in (6, 7, 8)]
        expected = [
            (0.75 * n, 1.0 + 0.75 * n, 2 * (8.0 - hidden_s)) for n, hidden_s in zip((6, 7, 8), steps_s, strict=True)
        ]
        assert told == expected


def same_but_for_the_executor(executor: Any) -> Run:
    policy = make_policy("preemptive", 1, 64, preemption_mode="auto")
    return simulate(
        make_workload([0.0, 2.5], [(6, 5), (4, 2)], priority=[1, 0]),
        make_policy=lambda: policy,
        kv=Memory(21, 4, 20),
        make_executor=lambda: executor,
    )


def test_where_nothing_predicts_auto_recomputes() -> None:
    predicted = same_but_for_the_executor(Predicted(COST)).records.requests
    replayed = same_but_for_the_executor(Replay([1.0] * 20)).records.requests
    assert predicted.swapped_out_blocks.tolist() == [2, 0]
    assert replayed.swapped_out_blocks.tolist() == [0, 0]
    assert replayed.recomputed_tokens.tolist() == [8, 0]


@dataclass(frozen=True)
class Short(Asked):
    """A batch, and what is swapped already."""

    running: Any = ()
    waiting: Any = ()
    num_free_host_blocks: int = 99


@dataclass(frozen=True)
class Runs(Sized):
    num_blocks: int = 2
    num_computed_tokens: int = 5
    is_swapped: bool = False
    is_decoding: bool = True


def test_who_is_swapped_already_is_ahead() -> None:
    """Three run, with 2 blocks each: the last two leave. The second of them has the first ahead of it."""
    for on_host, swaps in [([], [True, True]), ([20], [True, True]), ([28], [True, False]), ([36], [False, False])]:
        waiting = [Runs(tokens, is_swapped=True) for tokens in on_host]
        running: Any = [Runs(8), Runs(8), Runs(8)]
        view: Any = Short(running=running, waiting=[*waiting, Runs(999)])
        assert [preemption.swap for preemption in preemptions(view, running[:0:-1], "auto")] == swaps


@pytest.mark.parametrize("policy", ["preemptive", "vllm_v0"])
@pytest.mark.parametrize(("swap_s", "swaps"), [(0.001, True), (10.0, False)])
def test_auto_by_the_price_of_a_block(policy: str, swap_s: float, swaps: bool) -> None:
    """Short of memory: the younger leaves, and how depends on the price alone."""
    made = make_policy(policy, 8, 64, preemption_mode="auto")
    scenario = Scenario(make_workload([0.0, 0.0], [(7, 6), (7, 6)]), made, Memory(6, 4, 10), COST, swap_s)
    requests = scenario.run().records.requests
    assert requests.preemptions.sum() == 1
    assert bool(requests.swapped_out_blocks.sum()) == swaps
    assert bool(requests.recomputed_tokens.sum()) != swaps


def test_who_will_not_resume_soon_is_recomputed() -> None:
    """Three urgent ones come at once to the single slot: with two of them ahead the victim would lie on the host."""
    for urgent, swaps in [(1, True), (2, False), (3, False)]:
        workload = make_workload([0.0] + [2.5] * urgent, [(6, 5)] + [(4, 2)] * urgent, priority=[1] + [0] * urgent)
        policy = make_policy("preemptive", 1, 64, preemption_mode="auto")
        requests = Scenario(workload, policy, Memory(99, 4, 99), COST, 0.0).run().records.requests
        assert requests.preemptions[0] == 1
        assert bool(requests.swapped_out_blocks[0]) == swaps


# Pause


def test_who_pauses_keeps_everything() -> None:
    """The urgent one takes the slot from 3 s to 6 s; the other goes on with its next token, and computes none again."""
    told = serve(Preemptive(1, 64, "pause"), [(4, 6), (5, 3)], [0.0, 2.5], priority=[1, 0])
    one = {"0": 1}
    assert told.scheduled == [{"0": 4}, one, one, {"1": 5}, {"1": 1}, {"1": 1}, one, one, one]
    assert told.column("last_token_s") == [9.0, 6.0]
    assert told.column("preemptions") == told.column("recomputed_tokens") == [0, 0]
    assert told.steps("running")[3] == ["0", "1"], "it stays in the batch"
    assert told.records.rows.running.max() == 1, "and holds no slot"


def test_pauses_nest() -> None:
    """Each of three is more important than the one before: the last to come is the first to be done."""
    told = serve(Preemptive(1, 64, "pause"), [(4, 4)] * 3, [0.0, 1.5, 2.5], priority=[2, 1, 0])
    assert told.column("last_token_s") == [12.0, 10.0, 7.0]
    assert told.column("recomputed_tokens") == [0, 0, 0]
    assert told.steps("running")[4] == ["0", "1", "2"]


def test_the_paused_go_on_before_equals_enter() -> None:
    told = serve(Preemptive(1, 64, "pause"), [(4, 4), (4, 2), (4, 2)], [0.0, 0.25, 1.5], priority=[1, 1, 0])
    assert told.column("last_token_s") == [6.0, 8.0, 4.0]


def test_for_want_of_memory_the_paused_give_theirs() -> None:
    """8 blocks, two slots. At 2 s an urgent one pauses the second; at 3 s one needs 5 blocks, and 2 are left.

    The paused one has 3 blocks: it leaves and is computed again. Its slot was taken already, so the first must pause.
    """
    told = serve(
        Preemptive(2, 64, "pause"), [(5, 9), (9, 9), (3, 2), (18, 2)], [0.0, 0.0, 1.5, 2.5],
        priority=[1, 1, 0, 0], memory=Memory(9, 4),
    )  # fmt: skip
    assert told.scheduled[2] == {"0": 1, "2": 3}
    assert told.steps("preempted")[3] == ["1"]
    assert told.scheduled[3] == {"2": 1, "3": 18}
    assert told.column("recomputed_tokens") == [0, 10, 0, 0]
    assert told.column("output_tokens") == [9, 9, 2, 2]


def test_a_pause_spares_the_block_of_the_next_token() -> None:
    """4 blocks and two slots. At 1 s both need a block for their next token, and two urgent prompts need those two."""
    told = serve(
        Preemptive(2, 64, "pause"), [(4, 3)] * 2 + [(4, 1)] * 2, [0.0, 0.0, 0.5, 0.5], priority=[1, 1, 0, 0],
        memory=Memory(5, 4),
    )  # fmt: skip
    assert told.scheduled == [{"0": 4, "1": 4}, {"2": 4, "3": 4}, {"0": 1, "1": 1}, {"0": 1, "1": 1}]


def test_who_is_paused_already_gives_no_slot() -> None:
    """Two slots and 7 blocks: the paused must give its memory for the next urgent one, and the first its slot."""
    told = serve(
        Preemptive(2, 64, "pause"), [(4, 9), (7, 9), (4, 3), (7, 3), (1, 3)], [0.0, 0.0, 0.5, 1.5, 1.5],
        priority=[1, 1, 0, 0, 0], memory=Memory(8, 4),
    )  # fmt: skip
    assert told.scheduled[2] == {"2": 1, "3": 7}
    assert told.steps("preempted")[2] == ["1"]
    assert told.steps("running")[2] == ["0", "2", "3"]
    assert told.steps("waiting")[2] == ["4", "1"]
    assert told.column("output_tokens") == [9, 9, 3, 3, 3]


def test_a_prompt_under_way_cannot_pause() -> None:
    told = serve(Preemptive(1, 8, "pause"), [(20, 2), (4, 2)], [0.0, 1.5], priority=[1, 0])
    assert told.column("recomputed_tokens") == [16, 0]


# What may not be combined


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"policy": "preemptive", "preemption_mode": "auto"}, r"engine\.preemption_mode: `auto` has no host memory"),
        ({"policy": "preemptive", "preemption_mode": "swop"}, "unknown preemption_mode 'swop'\n.*did you mean `swap`"),
        ({"policy": "preemptive", "victim": "lst"}, "unknown victim 'lst'\n.*did you mean `last`"),
        ({"swap_overlap": 1}, "swap_overlap: must be true or false"),
    ],
)
def test_refused_by_the_schema(engine: Mapping[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        scenario(engine=dict(engine))


HOST = {"swap_space_gib": 1}
REFUSED: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = [
    (
        {"policy": "vllm_v0", "preemption_mode": "pause"},
        {},
        r"engine\.preemption_mode: .*recompute, swap, auto, not 'pause'",
    ),
    (
        {"policy": "preemptive", "preemption_mode": "pause", "victim": "most_memory"},
        {},
        r"engine\.preemption_mode: .* pause needs victim lowest_priority, not most_memory: the paused are",
    ),
    ({"policy": "preemptive", "order": "sjf"}, {}, r"engine\.order: .*\n?.*its own is: priority, then arrival"),
    ({"policy": "fastserve", "preemption_mode": "swap"}, HOST, r"its own is: swap; recompute when the host is full"),
    (
        {"policy": "chunked_prefill", "preemption_mode": "swap"},
        HOST,
        "its own is: recompute; these take it: pre",
    ),
    ({"policy": "preemptive", "enable_prefix_caching": True}, {}, "preemptive does not reckon with a prefix cache"),
    ({"policy": "vllm_v0", "enable_prefix_caching": True}, {}, "vllm_v0 does not reckon with a prefix cache"),
    ({"policy": "fastserve", "swap_overlap": True}, {}, r"engine\.swap_overlap: .*swap_space_gib is 0"),
    (
        {"policy": "orca", "swap_overlap": True},
        HOST,
        "policy orca never swaps.*\n?.*fastserve, preemptive, vllm_v0",
    ),
    ({"policy": "preemptive", "swap_overlap": True}, HOST, "nothing to overlap: preemption_mode is recompute"),
    (
        {"policy": "preemptive", "preemption_mode": "pause", "swap_overlap": True},
        HOST,
        "nothing to overlap: preemption_mode is pause",
    ),
]


@pytest.mark.parametrize(("engine", "hardware", "says"), REFUSED)
def test_refused_with_the_reason(engine: Mapping[str, Any], hardware: Mapping[str, Any], says: str) -> None:
    chosen = scenario(engine=dict(engine), hardware=dict(hardware))
    with pytest.raises(InputError, match=says):
        build(chosen)


FIXED = [name for name in built_in_policies() if not hasattr(policy_class(name), "victim")]


@pytest.mark.parametrize("policy", FIXED)
def test_a_fixed_victim_is_said_to_be(policy: str) -> None:
    with pytest.raises(InputError, match=r"engine\.victim: .* does not use this key") as refused:
        build(scenario(engine={"policy": policy, "victim": "last"}))
    system = system_of(policy)
    assert system is not None
    assert refused.value.hint == f"its own is: {system.victim}; these take it: preemptive, vllm_v0"


def test_those_that_choose() -> None:
    assert set(built_in_policies()) - set(FIXED) == {"preemptive", "vllm_v0"}
    for policy in ("preemptive", "vllm_v0"):
        for victim in VICTIMS:
            build(scenario(engine={"policy": policy, "victim": victim}))


def test_swap_overlap_goes_as_far_as_the_executor() -> None:
    engine = {"policy": "preemptive", "preemption_mode": "auto", "swap_overlap": True}
    chosen = scenario(engine=engine, hardware=HOST)
    assert build(chosen).swap_overlap
    assert not build(scenario()).swap_overlap
    kept, dropped = with_policy(chosen, "vllm_v0")
    assert kept.engine.swap_overlap
    assert dropped == ()
    other, dropped = with_policy(chosen, "orca")
    assert not other.engine.swap_overlap
    assert set(dropped) == {"swap_overlap", "preemption_mode"}


# Policies made in Python


@pytest.mark.parametrize("policy", built_in_policies())
@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_counts_are_counts(policy: str, name: str, value: object) -> None:
    made: Any = load_policy(policy, {})
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
        replace(made, **{name: value})


def test_other_parameters() -> None:
    for policy, name, value, says in [
        (VllmV0(), "watermark", 1.0, "watermark must be a number of at least 0 and below 1, not 1.0"),
        (VllmV0(), "watermark", float("nan"), "watermark must be a number of at least 0"),
        (VllmV0(), "victim", "first", "victim must be one of last, lowest_priority, .* or null, not 'first'"),
        (
            Preemptive(),
            "preemption_mode",
            "drop",
            "must be one of recompute, swap, auto, pause, not 'drop'",
        ),
    ]:
        changed: Any = policy
        with pytest.raises(ValueError, match=says):
            replace(changed, **{name: value})


# What the shipped scenario shows


def means(*overrides: str) -> dict[str, float]:
    """Mean end-to-end latency by mode."""
    found = {}
    for mode in ("recompute", "swap", "auto", "pause"):
        chosen = scenarios.load("preemption-modes", (f"engine.preemption_mode={mode}", *overrides))
        found[mode] = float(scenarios.run(chosen).summary["mean_e2el_ms"] or 0.0)
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_auto_is_not_worse_than_the_better(seed: int) -> None:
    """Where neither way is better for everybody, nor where one is by far."""
    mixed = means(f"seed={seed}")
    assert mixed["auto"] <= 1.01 * min(mixed["recompute"], mixed["swap"])
    assert mixed["pause"] < 0.9 * mixed["auto"]
    slow = means(f"seed={seed}", "hardware.gpu={base: a100-80gb, host_link_gb_s: 3}")
    assert slow["auto"] == slow["recompute"] < 0.2 * slow["swap"]
    fast = means(f"seed={seed}", "hardware.gpu={base: a100-80gb, host_link_gb_s: 300}")
    assert fast["auto"] <= 1.01 * fast["swap"] < 0.9 * fast["recompute"]
