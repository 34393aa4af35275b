"""The executor that does what the simulator prices: the same plans, on a real device over real pages.

It keeps an account of its own for each request: its tokens, how many are in the KV cache, and the pages that it used
last. Tables come from the block manager, whose ids are those of the pool. What is decided never depends on what is
sampled: answers end where the trace says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_backend.backend import Backend, Done
from gpu_backend.checks import Checks
from gpu_backend.tokens import answer_tokens, prompt_tokens
from gpu_backend.work import Part, Swap, Work
from simulator.engine.state import ReplicaState
from simulator.errors import InputError
from simulator.lockstep.run import DeviceStep
from simulator.request_state import RequestState
from simulator.timing.cost import StepShape
from simulator.timing.executor import Step


class Tables(Protocol):
    """Blocks by id: `simulator.memory.blocks.BlockManager`, `simulator.memory.prefix_cache.PrefixCache`."""

    @property
    def tables(self) -> dict[int, list[int]]: ...

    @property
    def references(self) -> list[int]: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int: ...

    def upcoming(self, num_blocks: int) -> list[int]: ...


@dataclass(slots=True)
class Story:
    """One request as the device knows it. `tokens` are its prompt and answer so far, without padding.

    `sampled` is what the model answered, and `best` the two best logits of each token. A finished request that computes
    on has more tokens than it answers.
    """

    tokens: list[int]
    prompt: int
    outputs: int  # tokens that it answers
    answer: Sequence[int] | None  # as the trace has it
    computed: int = 0  # KV tokens, padding included
    padding: int = 0
    table: list[int] = field(default_factory=list)  # at its last step
    host_table: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    best: list[tuple[float, float]] = field(default_factory=list)

    def take(self, token: int, best: tuple[float, float]) -> None:
        """The model has sampled a token; what is fed back is the trace's own where it has one."""
        place = len(self.tokens) - self.prompt
        if place < self.outputs:
            self.sampled.append(token)
            self.best.append(best)
        self.tokens.append(token if self.answer is None or place >= len(self.answer) else int(self.answer[place]))


class DeviceExecutor:
    """A `simulator.timing.executor.Executor`: steps really run, and take as long as the device says.

    `debug` checks the tables and poisons pages at every step, at a price. `measured` has an entry for each step, and
    `stories` one for each request. It serves one replica.
    """

    foresees = False
    wants_context_stats = True  # what a cost model may want to know of a step, its rows are to have

    def __init__(self, backend: Backend, *, seed: int = 0, debug: bool = False) -> None:
        self.backend = backend
        self.stories: dict[int, Story] = {}
        self.measured: list[DeviceStep] = []
        self._seed = seed
        self._checks = Checks(backend.pool) if debug else None
        self._state: ReplicaState | None = None

    def attach(self, state: ReplicaState) -> None:
        """See the replica: who decodes, and the tables. InputError where its blocks have no ids."""
        if not hasattr(state.blocks, "tables") or not hasattr(state.blocks, "upcoming"):
            what = f"the real backend needs blocks with ids, which {type(state.blocks).__name__} has not"
            raise InputError(what, hint="engine.enable_prefix_caching: false")
        self._state = state

    @property
    def answers(self) -> dict[int, list[int]]:
        """The tokens that each request was answered with, by row."""
        return {row: story.sampled for row, story in self.stories.items()}

    def execute(self, step: Step) -> float:
        work = self.work(step)
        if self._checks is not None:
            self._checks.before(work, self._blocks)
        done = self.backend.run(work)
        if self._checks is not None:
            self._checks.after(work)
        self._commit(work, done)
        self.measured.append(DeviceStep(work.digest, done.device_s, done.host_s))
        return done.device_s

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        raise NotImplementedError("a device executes one step at a time")

    # What is to be done

    def work(self, step: Step) -> Work:
        """The step as the device is told of it. Raises AssertionError where the engine's account differs from ours."""
        swap_out, swap_in = self._swaps(step)
        decodes = self._decodes() if step.shape.decode_seqs else ()
        chunks = tuple([self._chunk(live, n, padded) for live, n, padded in step.prefill if n])
        work = Work(decodes, chunks, swap_out, swap_in)
        assert work.shape == step.shape, f"the engine's step is {step.shape}, the device's {work.shape}"
        assert (len(swap_out.source), len(swap_in.source)) == (step.swapped_out_blocks, step.swapped_in_blocks)
        return work

    @property
    def _seen(self) -> ReplicaState:
        assert self._state is not None, "the executor was not attached to a replica"
        return self._state

    @property
    def _blocks(self) -> Tables:
        blocks: Tables = self._seen.blocks  # type: ignore[assignment] # `attach` has looked
        return blocks

    def _swaps(self, step: Step) -> tuple[Swap, Swap]:
        """Pages that leave and pages that come back; recomputed victims begin anew."""
        host: dict[int, list[int]] = getattr(self._seen.blocks, "host_tables", {})
        out: list[tuple[int, int]] = []
        back: list[tuple[int, int]] = []
        for preemption in step.plan.preempt:
            story = self.stories.get(preemption.request.row)
            if story is None:  # a victim that has never computed anything
                continue
            if preemption.swap:
                story.host_table = list(host[preemption.request.row])
                out += zip(story.table[: len(story.host_table)], story.host_table, strict=True)
            else:
                story.computed = 0
            story.table = []
        for request in step.plan.resume:
            story = self.stories[request.row]
            story.table = list(self._blocks.tables[request.row])
            back += zip(story.host_table, story.table, strict=True)
            story.host_table = []
        return _swap(out), _swap(back)

    def _decodes(self) -> tuple[Part, ...]:
        """Everybody who computes one token, finished requests in their slots among them."""
        state, tables = self._seen, self._blocks.tables
        size = self.backend.block_size
        decoders = state.decoders()
        takers = [
            live
            for live in decoders
            if not live.reserved_tokens and len(tables[live.row]) * size == live.num_computed_tokens
        ]
        fresh = dict(zip([live.row for live in takers], self._blocks.upcoming(len(takers)), strict=True))
        parts = []
        for place, live in enumerate([*decoders, *state.held]):
            story = self.stories[live.row]
            story.table = [*tables[live.row], *([fresh[live.row]] if live.row in fresh else [])]
            token = story.tokens[story.computed - story.padding]
            is_held = place >= len(decoders)
            parts.append(Part(live.row, story.computed, [token], story.table, story.padding, is_held=is_held))
        assert all(live.num_computed_tokens == self.stories[live.row].computed for live in decoders)
        return tuple(parts)

    def _chunk(self, live: RequestState, tokens: int, padded: int) -> Part:
        """A prompt chunk: of padding, prompt and, after a recomputation, the answer so far."""
        story = self._story(live)
        assert story.computed in (0, live.base_computed), f"row {live.row} has {story.computed} tokens in its pages"
        story.computed = live.base_computed  # a prefix cache has given it some
        story.padding = live.padding_tokens
        story.table = list(self._blocks.tables[live.row])
        begin = max(0, live.base_computed - story.padding)
        ids = [0] * padded + story.tokens[begin : begin + tokens - padded]
        return Part(live.row, story.computed, ids, story.table, story.padding, tokens == live.num_tokens_to_compute)

    def _story(self, live: RequestState) -> Story:
        story = self.stories.get(live.row)
        if story is None:
            model = self.backend.model
            most = live.input_tokens + live.output_tokens - 1
            if most > model.max_model_len:
                what = f"request {live.request_id} comes to {most} tokens, {model.name} takes {model.max_model_len}"
                raise InputError(what, hint="model.max_model_len, or shorter requests")
            prompt = prompt_tokens(live.request, model.vocab, self._seed).tolist()
            answer = answer_tokens(live.request, model.vocab)
            known = None if answer is None else answer.tolist()
            story = self.stories[live.row] = Story(prompt, len(prompt), live.output_tokens, known)
        return story

    # What was done

    def _commit(self, work: Work, done: Done) -> None:
        given = iter(zip(done.tokens, done.best, strict=True))
        for part in work.parts:
            story = self.stories[part.row]
            story.computed += len(part.tokens)
            if part.samples:
                story.take(*next(given))


def _swap(moves: list[tuple[int, int]]) -> Swap:
    return Swap(tuple([source for source, _ in moves]), tuple([target for _, target in moves]))
