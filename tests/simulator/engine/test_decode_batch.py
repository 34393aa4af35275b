"""The batch in sums, beside one that is walked request by request."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.division import cdiv
from simulator.engine.decode_batch import DecodeBatch
from simulator.request import Request
from simulator.request_state import RequestState
from tests.examples import examples


def prefilled(batch: DecodeBatch, row: int, inputs: int, outputs: int, now_s: float, reserved: int = 0) -> RequestState:
    """A request whose prompt has just been computed and given its first token."""
    live = RequestState(Request(row, str(row), 0.0, inputs, outputs, outputs), batch.clock)
    live.base_computed, live.base_outputs, live.last_token_s = inputs, 1, now_s
    live.reserved_tokens = reserved
    return live


@dataclass(slots=True)
class Walked:
    """What the machine knows of a request."""

    live: RequestState
    computed: int
    outputs: int
    last_token_s: float
    reserved: bool
    where: str = "decoding"  # paused held gone

    def grows(self, steps: int, size: int) -> int:
        """Blocks that so many tokens more take."""
        return 0 if self.reserved else cdiv(self.computed + steps, size) - cdiv(self.computed, size)


class SumsAndSingles(RuleBasedStateMachine):
    """Everything that the engine does to a batch, in any order."""

    @initialize(size=st.sampled_from([1, 2, 3, 4, 7, 16]))
    def begin(self, size: int) -> None:
        self.batch = DecodeBatch(size)
        self.size = size
        self.all: list[Walked] = []
        self.now_s = 0.0

    def of(self, *where: str) -> list[Walked]:
        return [request for request in self.all if request.where in where]

    @rule(inputs=st.integers(1, 40), outputs=st.integers(2, 50), reserved=st.booleans())
    def join(self, inputs: int, outputs: int, reserved: bool) -> None:
        live = prefilled(self.batch, len(self.all), inputs, outputs, self.now_s, inputs + outputs if reserved else 0)
        live.place = len(self.all)
        self.batch.join(live, outputs - 1)
        self.all.append(Walked(live, inputs, 1, self.now_s, reserved))

    @rule()
    def rest(self) -> None:
        self.now_s += 0.625

    @precondition(lambda self: self.of("decoding"))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.of("decoding")))
        self.batch.leave(request.live)
        request.live.paused = True
        request.where = "paused"
        assert request.live.last_token_s == request.last_token_s

    @precondition(lambda self: self.of("paused"))
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.of("paused")))
        self.batch.join(request.live, request.live.max_tokens - request.outputs)
        request.where = "decoding"

    @precondition(lambda self: self.of("decoding"))
    @rule(share=st.floats(0, 1), step_s=st.sampled_from([0.25, 0.5]), keep=st.booleans(), shy=st.integers(0, 40))
    def decode(self, share: float, step_s: float, keep: bool, shy: int) -> None:
        decoding = self.of("decoding")
        to_finish = min(r.live.max_tokens - r.outputs for r in decoding)
        assert self.batch.steps_to_finish() == to_finish
        self.fits(decoding, to_finish, shy)
        steps = max(1, round(share * to_finish))
        self.uses(decoding, steps)
        ends = [self.now_s + step_s * (i + 1) for i in range(steps)]
        late: Counter[float] = Counter()
        for gap_s, requests, end_s in self.batch.late_gaps(self.now_s, ends[0]):
            assert end_s == ends[0]
            late[gap_s] += requests
        assert late == Counter(ends[0] - r.last_token_s for r in decoding if r.last_token_s != self.now_s)
        done = self.batch.advance(steps, ends[-1])
        self.now_s = ends[-1]
        for request in decoding:
            request.computed += steps
            request.outputs += steps
            request.last_token_s = ends[-1]
        for request in self.of("held"):
            request.computed += steps
        finished = [r for r in decoding if r.outputs == r.live.max_tokens]
        assert sorted(live.row for live in done) == [r.live.row for r in finished]
        for request in finished:
            if keep and request.reserved:
                self.batch.hold(request.live)
                request.where = "held"
            else:
                self.batch.leave(request.live)
                assert request.live.last_token_s == ends[-1]
                request.where = "gone"

    def fits(self, decoding: list[Walked], to_finish: int, shy: int) -> None:
        """Steps that fit, at least all that are sure to: some may be left for the next look."""
        first = sum(r.grows(1, self.size) for r in decoding)
        assert self.batch.blocks_needed() == first
        free = first + shy
        fit = self.batch.steps_that_fit(shy, to_finish)
        assert 1 <= fit <= to_finish
        assert sum(r.grows(fit, self.size) for r in decoding) <= free
        if fit < to_finish and not any(r.reserved for r in decoding) and not self.of("held"):
            assert sum(r.grows(fit + 1, self.size) for r in decoding) > free

    def uses(self, decoding: list[Walked], steps: int) -> None:
        expected = [100 + sum(r.grows(i + 1, self.size) for r in decoding) for i in range(steps)]
        assert self.batch.block_use(100 + self.batch.blocks_needed(), steps) == expected

    @precondition(lambda self: self.of("held") and not self.of("decoding", "paused"))
    @rule()
    def release(self) -> None:
        self.batch.release_held()
        for request in self.of("held"):
            request.where = "gone"

    @rule(inputs=st.integers(1, 40))
    def hold_at_once(self, inputs: int) -> None:
        """An answer of one token finishes in its prefill, and takes a slot all the same."""
        live = prefilled(self.batch, len(self.all), inputs, 1, self.now_s, inputs + 1)
        self.batch.join_held(live)
        self.all.append(Walked(live, inputs, 1, self.now_s, reserved=True, where="held"))

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "batch"):
            return
        computing = self.of("decoding", "held")
        assert self.batch.size == len(computing)
        assert self.batch.held == len(self.of("held"))
        assert self.batch.context == sum(r.computed for r in computing)
        for request in self.of("decoding", "paused"):
            live = request.live
            assert live.num_computed_tokens == request.computed
            assert live.output_tokens_so_far == request.outputs
            assert live.num_tokens == live.input_tokens + request.outputs
            assert live.num_tokens_to_compute == 1
            assert live.num_blocks == cdiv(max(request.computed, live.reserved_tokens), self.size)


TestSumsAndSingles = SumsAndSingles.TestCase
TestSumsAndSingles.settings = examples(150, stateful_step_count=30)


def test_blocks_by_hand() -> None:
    """Blocks of 4; 3, 4 and 5 computed tokens: a block is needed now, in the next step and in the fourth."""
    batch = DecodeBatch(4)
    for row, inputs in enumerate((3, 4, 5)):
        batch.join(prefilled(batch, row, inputs, 20, 1.0), 19)
    assert batch.context == 12
    assert batch.blocks_needed() == 1
    assert batch.block_use(6, 6) == [6, 7, 7, 8, 9, 10]
    assert [batch.steps_that_fit(free, 19) for free in (0, 1, 2, 3)] == [1, 3, 4, 5]
    assert batch.steps_that_fit(14, 19) == 19
    assert batch.steps_to_finish() == 19
    assert batch.advance(18, 19.0) == []
    assert [live.row for live in batch.advance(1, 20.0)] == [0, 1, 2]


def test_who_pauses_finishes_later() -> None:
    batch = DecodeBatch(4)
    first, second = (prefilled(batch, row, 3, 5, 1.0) for row in range(2))
    batch.join(first, 4)
    batch.join(second, 4)
    assert batch.steps_to_finish() == 4
    batch.leave(first)
    assert batch.advance(2, 3.0) == []
    batch.join(first, 4)
    assert batch.steps_to_finish() == 2
    # The first has waited since 1 s, the second got its token at 3 s.
    assert list(batch.late_gaps(3.0, 4.0)) == [(3.0, 1, 4.0)]
    assert [live.row for live in batch.advance(2, 5.0)] == [1]
    batch.leave(second)
    assert batch.steps_to_finish() == 2
    assert [live.row for live in batch.advance(2, 7.0)] == [0]


def test_paused_for_no_step_at_all() -> None:
    """Its old entry among those who finish is as good as the new one, and counts once."""
    batch = DecodeBatch(4)
    live = prefilled(batch, 0, 3, 3, 1.0)
    batch.join(live, 2)
    batch.leave(live)
    batch.join(live, 2)
    assert batch.size == 1
    assert batch.steps_to_finish() == 2
    assert batch.advance(2, 3.0) == [live]


def test_paused_behind_one_that_finishes_at_the_same_step() -> None:
    """Its old entry is not the next to finish, and goes with the next."""
    batch = DecodeBatch(4)
    first, second = prefilled(batch, 0, 3, 3, 1.0), prefilled(batch, 1, 3, 3, 1.0)
    batch.join(first, 2)
    batch.join(second, 2)
    batch.leave(second)
    assert batch.steps_to_finish() == 2
    assert batch.advance(2, 3.0) == [first]
    batch.join(second, 1)
    assert batch.steps_to_finish() == 1


@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_reservation_takes_no_blocks(size: int) -> None:
    batch = DecodeBatch(size)
    batch.join(prefilled(batch, 0, 5, 40, 1.0, reserved=45), 39)
    assert batch.blocks_needed() == 0
    assert batch.block_use(9, 4) == [9, 9, 9, 9]
    assert batch.steps_that_fit(0, 39) >= 1
