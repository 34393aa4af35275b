"""Law 2: a plan that cannot be is an error that names the policy and the rule; so is a policy that gets nowhere."""

from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

import pytest

from simulator.engine import completion as progress
from simulator.errors import PolicyError
from simulator.memory.blocks import BlockManager
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View
from simulator.results.records import Status
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload
from tests.laws.scripted import Line, Scripted, admit_all, admit_one_token, go_on, reserve_all, serve


def two_requests(
    lines: list[Line], *, blocks: int = 20, host: int = 0, seqs: int = 4, traits: Traits | None = None
) -> Scenario:
    """Two prompts of 6 tokens, answers of 5, blocks of 2 tokens; steps of a second."""
    policy = Scripted(lines, seqs, traits or Traits())
    memory = Memory(blocks + 1, 2, host)
    return Scenario(make_workload([0.0, 0.0], [(6, 5), (6, 5)]), policy, memory, Linear(1.0))


def first(view: View) -> Any:
    return next(iter(view.running))


def last(view: View) -> Any:
    return next(reversed(view.running))


def waiting(view: View) -> Any:
    return view.waiting.head


KEPT: list[Any] = []


def keep(view: View) -> StepPlan:
    """Remember the request that waits first, and compute its whole prompt with everybody's."""
    KEPT[:] = [view.waiting.head]
    return admit_all(view)


@dataclass(frozen=True, slots=True)
class Broken:
    """A script and what must be said about its last line."""

    lines: list[Line]
    says: str
    blocks: int = 20
    host: int = 0
    seqs: int = 4
    traits: Traits | None = None


BROKEN = {
    "preempts who waits": Broken([lambda v: StepPlan(preempt=(Preemption(waiting(v)),))], "waiting"),
    "preempts twice": Broken(
        [admit_all, lambda v: StepPlan(preempt=(Preemption(first(v)), Preemption(first(v))))], "waiting"
    ),
    "preempts who has finished": Broken(
        [keep, *[go_on] * 4, lambda v: StepPlan(preempt=(Preemption(KEPT[0]),))], "finished"
    ),
    "swaps a prompt under way": Broken(
        [admit_one_token, lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),))], "prompt", host=9
    ),
    "swaps a reservation": Broken(
        [reserve_all, lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),))], "reserved", host=9
    ),
    "swaps without room": Broken(
        [admit_all, lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),))], "3 blocks, the host has 2", host=2
    ),
    "resumes who was not swapped": Broken([lambda v: StepPlan(resume=(waiting(v),))], "waiting"),
    "resumes twice": Broken(
        [
            admit_all,
            lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),)),
            lambda v: StepPlan(resume=(waiting(v), waiting(v))),
        ],
        "decoding",
        host=9,
    ),
    "resumes without room": Broken(
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),)),
            lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),)),
            lambda v: StepPlan(prefill=(Chunk(list(v.waiting)[1], 6),)),
            lambda v: StepPlan(resume=(waiting(v),), decode=False),
        ],
        "takes 3 blocks; 2 are free",
        blocks=5,
        host=9,
    ),
    "computes more than there is": Broken([lambda v: StepPlan(prefill=(Chunk(waiting(v), 7),))], "has 6 left"),
    "computes less than nothing": Broken([lambda v: StepPlan(prefill=(Chunk(waiting(v), -1),))], "computes -1"),
    "computes a prompt again": Broken([admit_all, lambda v: StepPlan(prefill=(Chunk(first(v), 1),))], "decoding"),
    "computes a request twice in a step": Broken(
        [lambda v: StepPlan(prefill=(Chunk(waiting(v), 2), Chunk(waiting(v), 2)))], "twice"
    ),
    "computes a prompt under way twice in a step": Broken(
        [admit_one_token, lambda v: StepPlan(prefill=(Chunk(first(v), 2), Chunk(first(v), 2)))], "twice"
    ),
    "computes a swapped request": Broken(
        [
            admit_all,
            lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),)),
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),)),
        ],
        "swapped",
        host=9,
    ),
    "takes blocks that are not there": Broken([admit_all], "takes 3 blocks for request 1; 2 are free", blocks=5),
    "decodes without blocks": Broken([admit_all, go_on], "which takes 2 blocks; 0 are free", blocks=6),
    "runs more than its slots": Broken([admit_all], "max_num_seqs is 1", seqs=1),
    "resumes more than its slots": Broken(
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),)),
            lambda v: StepPlan(preempt=(Preemption(first(v), swap=True),)),
            lambda v: StepPlan(prefill=(Chunk(list(v.waiting)[1], 6),)),
            lambda v: StepPlan(resume=(waiting(v),)),
        ],
        "max_num_seqs is 1",
        host=9,
        seqs=1,
    ),
    "wakes more than its slots": Broken(
        [
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),)),
            lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),), paused=(first(v),)),
            go_on,
        ],
        "max_num_seqs is 1",
        seqs=1,
    ),
    "pauses who waits": Broken([lambda v: StepPlan(paused=(waiting(v),))], "waiting"),
    "pauses a prompt under way": Broken([admit_one_token, lambda v: StepPlan(paused=(first(v),))], "prefilling"),
    "pauses twice": Broken([admit_all, lambda v: StepPlan(paused=(first(v), first(v)))], "twice"),
    "reserves too little": Broken([lambda v: StepPlan(prefill=(Chunk(waiting(v), 6, 9),))], "need 10"),
    "reserves too little for its padding": Broken(
        [lambda v: StepPlan(prefill=(Chunk(waiting(v), 6, 11, 2),))], "need 12"
    ),
    "pads without reserving": Broken([lambda v: StepPlan(prefill=(Chunk(waiting(v), 6, 0, 2),))], "need 12"),
    "holds slots without reserving": Broken([admit_all], "reserves 0", traits=Traits(keeps_finished=True)),
    "waits for the present": Broken([lambda v: StepPlan(wait_until_s=v.now_s)], "not after now"),
    "waits for the past": Broken(
        [admit_all, go_on, lambda v: StepPlan(decode=False, wait_until_s=0.5)], "not after now"
    ),
    "waits for no time": Broken([lambda v: StepPlan(wait_until_s=nan)], "nan"),
    "waits for ever": Broken([lambda v: StepPlan(wait_until_s=inf)], "inf"),
}


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("name", BROKEN)
def test_a_plan_that_cannot_be(name: str, fast_forward: bool) -> None:
    case = BROKEN[name]
    scenario = two_requests(case.lines, blocks=case.blocks, host=case.host, seqs=case.seqs, traits=case.traits)
    with pytest.raises(PolicyError) as caught:
        scenario.run(fast_forward=fast_forward)
    text = str(caught.value)
    assert text.startswith("Scripted at step ")
    assert case.says in text


@dataclass(slots=True)
class Budgeted(Scripted):
    """A script with a budget of tokens."""

    max_num_batched_tokens: int = 8


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(
    ("lines", "budget", "says"),
    [
        ([admit_all], 11, "at step 0 (0.0 s): plan computes 12 tokens; max_num_batched_tokens is 11"),
        ([admit_one_token, go_on], 9, "at step 1 (1.0 s): plan computes 10 tokens; max_num_batched_tokens is 9"),
        ([admit_one_token, *[lambda v: StepPlan(prefill=tuple(Chunk(r, 1) for r in v.prefilling))] * 5, go_on], 2, ""),
        ([reserve_all, go_on], 12, ""),
        (
            [lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),)), lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),))],
            6,
            "at step 1 (1.0 s): plan computes 7 tokens; max_num_batched_tokens is 6",
        ),
        (
            [lambda v: StepPlan(prefill=(Chunk(waiting(v), 6),), decode=False), serve, go_on],
            1,
            "at step 0 (0.0 s): plan computes 6 tokens; max_num_batched_tokens is 1",
        ),
        (
            [
                lambda v: StepPlan(prefill=(Chunk(waiting(v), 3, 15, 4),)),
                lambda v: StepPlan(prefill=(Chunk(first(v), 7, 0, 0),)),
            ],
            6,
            "at step 1 (1.0 s): plan computes 7 tokens; max_num_batched_tokens is 6",
        ),
    ],
)
def test_a_step_beyond_the_budget(lines: list[Line], budget: int, says: str, fast_forward: bool) -> None:
    """Of prompts, of prompts beside decodes, with padding; a budget that is just met is met."""
    scenario = two_requests([])
    policy = Budgeted(lines, max_num_batched_tokens=budget)
    run = replace(scenario, policy=policy).run
    if not says:
        run(fast_forward=fast_forward)
        return
    with pytest.raises(PolicyError) as caught:
        run(fast_forward=fast_forward)
    assert str(caught.value) == f"Budgeted {says}"


@pytest.mark.parametrize("holds", Holds)
def test_decodes_alone_beyond_the_budget(holds: Holds) -> None:
    """Two prompts one after the other, six tokens each; then two decode with a budget for one."""
    one: Line = lambda v: StepPlan(prefill=(Chunk(waiting(v), 1),), decode=False)  # noqa: E731 - a line of a script
    rest: Line = lambda v: StepPlan(prefill=(Chunk(next(iter(v.prefilling)), 1),), decode=False)  # noqa: E731 - a line
    lines: list[Line] = [one, *[rest] * 5, one, *[rest] * 5, lambda v: StepPlan(holds=holds)]
    with pytest.raises(
        PolicyError, match=r"at step 12 \(12.0 s\): plan computes 2 tokens; max_num_batched_tokens is 1"
    ):
        replace(two_requests([]), policy=Budgeted(lines, max_num_batched_tokens=1)).run()


def test_a_request_of_another_replica() -> None:
    stranger: list[Any] = []

    def steal(view: View) -> StepPlan:
        if stranger and stranger[0] is not view.waiting.head:
            return StepPlan(prefill=(Chunk(stranger[0], 1),))
        stranger.append(view.waiting.head)
        return serve(view)

    scenario = replace(two_requests([]), replicas=2)
    with pytest.raises(PolicyError, match="no request of this replica"):
        scenario.run(make_policy=lambda: Scripted([steal]))


def test_something_that_is_no_request() -> None:
    stranger: Any = "request 0"
    with pytest.raises(PolicyError, match="'request 0'"):
        two_requests([lambda v: StepPlan(prefill=(Chunk(stranger, 1),))]).run()


def test_a_plan_that_is_none() -> None:
    nothing: Any = None
    with pytest.raises(PolicyError, match="Scripted"):
        two_requests([lambda v: nothing]).run()


# What is unusual and right.


def test_slot_now_prompt_later() -> None:
    """A chunk of 0 tokens admits; for a prompt under way it is nothing at all, and takes no memory."""
    nothing: Line = lambda v: StepPlan(prefill=tuple(Chunk(r, 0) for r in v.running))  # noqa: E731 - a line of a script
    half: Line = lambda v: StepPlan(prefill=tuple(Chunk(r, 3) for r in v.prefilling))  # noqa: E731 - a line of a script
    admit: Line = lambda v: StepPlan(prefill=tuple(Chunk(r, 0) for r in v.waiting))  # noqa: E731 - a line of a script
    checked: list[BlockManager] = []

    def make_blocks(num_blocks: int, num_host_blocks: int) -> BlockManager:
        checked.append(BlockManager(num_blocks, num_host_blocks))
        return checked[0]

    run = two_requests([admit, half, nothing, go_on]).run(make_blocks=make_blocks, log_decisions=True)
    assert run.decisions is not None
    assert [step["admitted"] for step in run.decisions[:4]] == [{"0": 0, "1": 0}, {}, {}, {}]
    assert [20 - step["num_free_blocks"] for step in run.decisions[:5]] == [0, 4, 4, 6, 8]
    assert run.records.requests.scheduled_s.tolist() == [0.0, 0.0]
    assert (run.records.requests.status == Status.FINISHED).all()
    checked[0].check()
    assert checked[0].num_free == 20


def test_swapped_and_brought_back_in_one_step() -> None:
    """Out and in again, with all that it costs."""
    there_and_back: Line = lambda v: StepPlan(  # noqa: E731 - a line of a script
        preempt=(Preemption(first(v), swap=True),), resume=(first(v),)
    )
    scenario = replace(two_requests([admit_all, there_and_back, go_on], host=3), swap_s_per_block=0.25)
    records = scenario.run(make_blocks=BlockManager).records
    assert records.requests.swapped_out_blocks.tolist() == [3, 0]
    assert records.requests.swapped_in_blocks.tolist() == [3, 0]
    assert records.step_end_s.tolist() == [1.0, 3.5, 4.5, 5.5, 6.5]
    assert records.requests.requeued_s.tolist() == [0.0, 0.0]


def test_who_is_paused_needs_no_block() -> None:
    """Two at the end of their blocks and none is free but one: one pauses, step after step, and the other goes on."""
    pause: Line = lambda v: StepPlan(paused=(last(v),) if len(v.running) > 1 else ())  # noqa: E731 - a line of a script
    scenario = two_requests([admit_all, pause], blocks=8)
    scenario = replace(scenario, workload=make_workload([0.0, 0.0], [(6, 5), (6, 2)]))
    records = scenario.run(make_blocks=BlockManager).records
    assert records.requests.last_token_s.tolist() == [5.0, 6.0]
    assert records.rows.decoding.tolist() == [0, 1, 1]
    assert records.step_used_blocks.tolist() == [6, 7, 7, 8, 8, 4]


def test_a_preempted_pad_loses_no_tokens() -> None:
    """Padding is no token of the request: throwing it away is nothing to compute again."""
    padded: Line = lambda v: StepPlan(prefill=(Chunk(waiting(v), 3, 15, 4),))  # noqa: E731 - a line of a script
    throw: Line = lambda v: StepPlan(preempt=(Preemption(first(v)),))  # noqa: E731 - a line of a script
    records = two_requests([padded, throw, serve]).run().records
    assert records.requests.recomputed_tokens.tolist() == [0, 0]
    assert records.requests.preemptions.tolist() == [1, 0]


def test_what_a_quitter_leaves_behind() -> None:
    """A policy that stops serving: nobody is lost, and nobody has got more than he got."""
    quit_: Line = lambda v: StepPlan(decode=False)  # noqa: E731 - a line of a script
    records = two_requests([admit_all, go_on, go_on, quit_]).run().records
    requests = records.requests
    assert requests.status.tolist() == [Status.UNFINISHED] * 2
    assert requests.output_tokens.tolist() == [3, 3]
    assert requests.first_token_s.tolist() == [1.0, 1.0]
    assert requests.last_token_s.tolist() == [3.0, 3.0]


# No livelock.


def admit_and_throw_out(view: View) -> StepPlan:
    if view.running:
        return StepPlan(preempt=(Preemption(first(view)),))
    return StepPlan(prefill=(Chunk(waiting(view), 1),))


def admit_nothing(view: View) -> StepPlan:
    return StepPlan(prefill=tuple(Chunk(r, 0) for r in [*view.waiting, *view.running]))


def wait_a_little(view: View) -> StepPlan:
    return StepPlan(wait_until_s=view.now_s + 1.0)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("line", [admit_and_throw_out, admit_nothing, wait_a_little])
def test_a_policy_that_gets_nowhere(line: Line, fast_forward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_STEPS_WITHOUT_A_TOKEN", 50)
    with pytest.raises(PolicyError, match=r"Scripted at .* 50 ") as caught:
        two_requests([line]).run(fast_forward=fast_forward)
    assert "running" in str(caught.value)
    assert "waiting" in str(caught.value)


@pytest.mark.parametrize("line", [admit_and_throw_out, wait_a_little])
def test_it_is_stopped_at_the_same_step_either_way(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though others keep arriving: fast-forward hears of them in another way."""
    monkeypatch.setattr(progress, "MAX_STEPS_WITHOUT_A_TOKEN", 20)
    workload = make_workload([3.25 * i for i in range(30)], [(6, 5)] * 30)
    said = []
    for fast_forward in (True, False):
        with pytest.raises(PolicyError) as caught:
            replace(two_requests([line]), workload=workload).run(fast_forward=fast_forward)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_the_bound_is_on_steps_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of one token a step each: never more than 11 steps without a token, and 44 in all."""
    monkeypatch.setattr(progress, "MAX_STEPS_WITHOUT_A_TOKEN", 11)

    def crumbs(view: View) -> StepPlan:
        if view.prefilling:
            return StepPlan(prefill=tuple(Chunk(r, 1) for r in view.prefilling))
        if view.running or not len(view.waiting):
            return StepPlan()
        return StepPlan(prefill=(Chunk(waiting(view), 1),))

    policy = Scripted([crumbs])
    scenario = Scenario(make_workload([0.0] * 4, [(12, 1)] * 4), policy, Memory(100, 2), Linear(1.0))
    assert (scenario.run().records.requests.status == Status.FINISHED).all()
    monkeypatch.setattr(progress, "MAX_STEPS_WITHOUT_A_TOKEN", 10)
    with pytest.raises(PolicyError):
        scenario.run(make_policy=lambda: Scripted([crumbs]))


def test_the_bound_does_not_stop_a_run_of_long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Static batching waits for its timeout again and again, and for a batch of many to come: that is no livelock."""
    monkeypatch.setattr(progress, "MAX_STEPS_WITHOUT_A_TOKEN", 3)
    workload = make_workload([0.5 * i for i in range(20)], [(4, 1)] * 20)
    for timeout_s in (0.1, 100.0):
        policy = make_policy("static", 20, 64, batch_timeout_s=timeout_s)
        records = Scenario(workload, policy, Memory(100, 2), Linear(0.01)).run().records
        assert (records.requests.status == Status.FINISHED).all()
