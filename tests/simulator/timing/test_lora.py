"""The price of adapters, from dimensions worked out by hand."""

import pytest

from simulator.engine.clock import Clock
from simulator.engine.parts.adapters import Adapters
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState
from simulator.results.buffers import ReplicaRecorder
from simulator.timing.added import KERNEL_S, Loras, RanksWithAddition, WithAddition
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear

LLAMA = find_model("llama-3.1-8b")
RANK_16 = Loras(LLAMA, find_gpu("h100"), 1, 16)


def test_a_slot_holds_the_matrices_of_every_projection() -> None:
    # inputs of each slice, and outputs: q, k, v; o; gate, up; down
    weights = (3 * 4096 + 4096 + 2 * 1024) + (4096 + 4096) + (2 * 4096 + 2 * 14336) + (14336 + 4096)
    assert RANK_16.slot_bytes == 32 * 16 * weights * 2
    halves = (3 * 4096 + 2048 + 2 * 512) + (2048 + 4096) + (2 * 4096 + 14336) + (7168 + 4096)
    assert Loras(LLAMA, find_gpu("h100"), 2, 16).slot_bytes == 32 * 16 * halves * 2


def test_experts_have_no_adapters() -> None:
    model = find_model("mixtral-8x7b")
    weights = (3 * 4096 + 4096 + 2 * 1024) + (4096 + 4096)
    assert Loras(model, find_gpu("h100"), 1, 8).slot_bytes == model.layers * 8 * weights * 2


def test_few_tokens_take_the_shortest_kernels() -> None:
    shape = StepShape(4, 400, loras=1, lora_tokens=4)
    assert RANK_16.s(shape) == pytest.approx(32 * 8 * KERNEL_S)
    assert RANK_16.s(shape._replace(lora_tokens=0)) == 0.0


def test_many_tokens_take_their_bytes() -> None:
    shape = StepShape(0, 0, 1, 8192, 8192, loras=2, lora_tokens=8192)
    moved = 0
    for inputs, outputs, slices in ((4096, 6144, 3), (4096, 4096, 1), (4096, 28672, 2), (14336, 4096, 1)):
        moved += (8192 + 2 * slices * 16) * inputs * 2 + (2 * 8192 + 2 * 16) * outputs * 2
        moved += 2 * 8192 * slices * 16 * 4
    assert RANK_16.s(shape) == pytest.approx(32 * moved / (3350e9 * 0.85))


def test_an_adapter_comes_over_the_host_link() -> None:
    shape = StepShape(1, 10, loaded_loras=3)
    assert RANK_16.s(shape) == pytest.approx(3 * RANK_16.slot_bytes / 55e9)


def test_a_run_of_steps_costs_what_its_steps_do() -> None:
    cost = WithAddition(Linear(1e-3, 1e-5, 1e-7), RANK_16)
    shape = StepShape(5, 700, loras=2, lora_tokens=3)
    assert cost.decode_run_s(shape, 4) == [cost.step_s(shape.later(i)) for i in range(4)]
    assert cost.step_s(shape) > Linear(1e-3, 1e-5, 1e-7).step_s(shape)


def test_ranks_wait_for_the_slowest_adapters() -> None:
    class Common:
        def group_step_s(self, shapes: object) -> float:
            return 1.0

    shapes = [StepShape(4, 9, loras=1, lora_tokens=n) for n in (4, 4096)]
    assert RanksWithAddition(Common(), RANK_16).group_step_s(shapes) == 1.0 + RANK_16.s(shapes[1])


def test_latent_attention_is_not_priced() -> None:
    with pytest.raises(InputError, match="latent attention"):
        Loras(find_model("deepseek-v3"), find_gpu("h200"), 8, 16)


def adapters(names: str, max_loras: int) -> tuple[list[RequestState], Adapters, Clock]:
    """A waiting request for each of the adapters."""
    clock, decode_clock = Clock(), DecodeClock(16)
    slots = Adapters(max_loras, clock, ReplicaRecorder(1).adapters)
    waiting = [
        RequestState(Request(row, str(row), 0.0, 8, 8, 8, lora=name), decode_clock) for row, name in enumerate(names)
    ]
    for live in waiting:
        slots.arrived(live)
    return waiting, slots, clock


def test_a_request_is_shut_out_while_others_have_all_slots() -> None:
    (first, second, third, again), slots, clock = adapters("abca", 2)
    slots.entered(first)
    clock.advance(1.0)
    slots.entered(second)  # from here on c is shut out
    clock.advance(3.0)
    slots.entered(again)  # its adapter is there
    slots.left(second)
    slots.waits(second, clock.now)  # preempted
    clock.advance(7.0)
    slots.entered(third)  # from here on b is
    clock.advance(12.0)
    for live in (first, again):
        slots.left(live)
        slots.ended(live)
    assert slots.unfinished == {"b": 1, "c": 1}
    clock.advance(20.0)
    slots.entered(second)
    rows = slots._admissions.columns()
    assert rows["row"].tolist() == [0, 1, 3, 2, 1]
    assert rows["at_s"].tolist() == [0.0, 1.0, 3.0, 7.0, 20.0]
    assert rows["shut_out_s"].tolist() == [0.0, 0.0, 0.0, 2.0, 5.0]
    assert rows["loaded"].tolist() == [1, 1, 0, 1, 1]


def test_an_arrival_that_is_seen_behind_changes_waits_from_its_own_time_on() -> None:
    (first, second, third, again), slots, clock = adapters("abca", 2)
    slots.ended(third)
    slots.ended(again)
    slots.entered(first)
    slots.entered(second)
    clock.advance(5.0)
    slots.left(first)
    for live in (third, again):
        slots.unfinished[live.lora or ""] = 1
        slots.waits(live, 3.0)
    slots.entered(third)
    clock.advance(9.0)
    slots.left(second)
    slots.entered(again)
    assert slots._admissions.columns()["shut_out_s"].tolist() == [0.0, 0.0, 2.0, 4.0]


def test_the_slot_used_longest_ago_is_given_up() -> None:
    (first, second, third), slots, _ = adapters("abc", 2)
    loaded = []

    def step_with(*enters: RequestState) -> None:
        assert all(slots.entered(live) for live in enters)
        loaded.append(slots.counted(StepShape(1, 8), [(live, 8, 0) for live in enters]).loaded_loras)

    step_with(first, second)
    slots.left(second)
    slots.left(first)
    step_with(third)  # in place of b, which was used before a
    slots.left(third)
    slots.waits(first, 0.0)
    slots.waits(second, 0.0)
    step_with(first)
    step_with(second)  # in place of c
    assert loaded == [2, 1, 0, 1]
    slots.waits(third, 0.0)
    assert not slots.entered(third)
