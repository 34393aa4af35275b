"""The executor of a device: it carries out over real pages the plans that the simulator prices.

It keeps its own account of each request: its tokens, how many of them are in the KV cache, and the pages of its last
step. Tables come from the block manager, whose ids are those of the pool. Decisions never depend on what is sampled:
answers end where the trace says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpu_backend.backend import Backend, Done
from gpu_backend.decoder import Checks
from gpu_backend.device import STEADY
from gpu_backend.probes import Controls
from gpu_backend.work import ScheduledPart, Swap, Work
from simulator.errors import InputError
from simulator.lockstep.lockstep_run import Canary, DeviceStep
from simulator.lockstep.step_errors import regime_of
from simulator.memory.blocks import BlockTables
from simulator.request import Request
from simulator.request_state import FINISHED, RequestState
from simulator.timing.executor import ExecutorTraits, Step

# Invented tokens of prompts, equal wherever the trace says that content is equal.
#
# A prefix cache shares blocks by what the trace tells of their content (`simulator.memory.block_keys`). For the
# pages shared to be the right ones, prompts must really have equal tokens there: they are drawn from a hash of what
# is known.

Tokens = NDArray[np.int64]


def prompt_tokens(request: Request, vocab: int, seed: int = 0) -> Tokens:
    """The request's prompt: token ids below `vocab`, as the trace gives them or as its hashes and prefixes demand."""
    count = request.input_tokens
    place = np.arange(count, dtype=np.uint64)
    key = np.full(count, _key("own", request.row, seed), dtype=np.uint64)
    content = request.content
    if content is not None:
        if content.prompt_token_ids:
            return np.asarray(content.prompt_token_ids, dtype=np.int64) % vocab
        if content.block_hashes:
            size = content.hash_block_size
            for block, value in enumerate(content.block_hashes):
                key[block * size : (block + 1) * size] = _key("hash", value, seed)
        elif content.prefix_tokens:
            key[: content.prefix_tokens] = _key(f"group {content.prefix_group}", 0, seed)
    return (_mixed(key ^ _mixed(place)) % np.uint64(vocab)).astype(np.int64)


def answer_tokens(request: Request, vocab: int) -> Tokens | None:
    """The answer's tokens in the trace; None where the model's own tokens are fed back.

    Blocks of a recorded answer are cached under the recorded tokens, so these must be what is computed.
    """
    content = request.content
    if content is None or not content.output_token_ids:
        return None
    return np.asarray(content.output_token_ids, dtype=np.int64) % vocab


def _key(word: str, number: int, seed: int) -> np.uint64:
    return np.uint64(crc32(f"{word} {number} {seed}".encode()))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every bit of the input reaches every bit of the output (Steele et al., OOPSLA 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# The executor.

CHECK_EVERY = 25
"""Steps between two readings of the controls, and of a GPU's canary. A CPU's runs beside every step."""


@dataclass(slots=True)
class RequestTrace:
    """The device's account of one request. `tokens` are its prompt and answer so far, without padding.

    `sampled` is what the model answered, and `best` the two best logits of each token. A finished request that computes
    on has more tokens than its answer.
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
        """Append a sampled token, or in its place the trace's own where it has one."""
        place = len(self.tokens) - self.prompt
        if place < self.outputs:
            self.sampled.append(token)
            self.best.append(best)
        self.tokens.append(token if self.answer is None or place >= len(self.answer) else int(self.answer[place]))


class DeviceExecutor:
    """A `simulator.timing.executor.Executor`: steps run on the device, and last as long as it measures.

    `debug` checks the tables and poisons pages at every step, at a price. `then` is what a profile was measured beside,
    and `began` the canary over its reference when this process began: of that a step beside it must be near, to count.
    `measured` has an entry for each step, and `stories` one for each request. It serves one replica.
    """

    # Cost models are fitted to its steps: they have every count that a cost model may want.
    traits = ExecutorTraits(wants_context_stats=True, wants_block_ids=True)

    def __init__(
        self, backend: Backend, *, seed: int = 0, debug: bool = False, then: Canary | None = None, began: float = 1.0
    ) -> None:
        self.backend = backend
        self.stories: dict[int, RequestTrace] = {}
        self.measured: list[DeviceStep] = []
        self._seed = seed
        self._checks = Checks(backend.pool) if debug else None
        self._then = then or Canary("", 1.0)
        self._began = began
        self._controls = Controls(backend, {name: step for name, (step, _) in self._then.controls.items()})
        self._apart: dict[str, float] = {}  # controls over the profile's, by regime

    @property
    def answers(self) -> dict[int, list[int]]:
        """The tokens of each request's answer, by row."""
        return {row: story.sampled for row, story in self.stories.items()}

    def execute(self, step: Step) -> float:
        work = self.work(step)
        if len(self.measured) % CHECK_EVERY == 0:
            self._time_controls()
        if self._checks is not None:
            self._checks.before(work, _blocks(step))
        done = self.backend.run(work)
        if self._checks is not None:
            self._checks.after(work)
        self._commit(work, done)
        device = self.backend.device
        pulse, is_steady = device.pulse(), done.is_hidden and self._is_steady(device.canary)
        canary, control = device.canary / self._then.seen.median, self._apart.get(regime_of(work.shape), nan)
        times = work.digest, done.device_s, done.host_s, canary
        self.measured.append(DeviceStep(*times, is_steady, pulse.sm_mhz, pulse.power_w, control))
        if device.name == "cuda" and len(self.measured) % CHECK_EVERY == 0:
            self._check()
        return done.device_s

    def _check(self) -> None:
        """Time the canary; where it has drifted, mark the steps since it was last timed: they may have drifted too."""
        if not self._is_steady(self.backend.device.check()):
            self.measured[-CHECK_EVERY:] = [step._replace(is_steady=False) for step in self.measured[-CHECK_EVERY:]]

    def _is_steady(self, canary: float) -> bool:
        return abs(canary / self._began - 1.0) <= STEADY[self.backend.device.name]

    def _time_controls(self) -> None:
        for name, seconds in self._controls.timed().items():
            self._apart[name] = seconds / self._then.controls[name][1].median

    # Preparing

    def work(self, step: Step) -> Work:
        """Put the step into the device's terms. AssertionError where the engine's account differs from this one."""
        swap_out, swap_in = self._swaps(step)
        decodes = self._decodes(step)
        chunks = tuple([self._chunk(step, live, n, padded) for live, n, padded in step.prefill if n])
        work = Work(decodes, chunks, swap_out, swap_in)
        assert work.shape == step.shape, f"the engine's step is {step.shape}, the device's {work.shape}"
        assert (len(swap_out.source), len(swap_in.source)) == (step.swapped_out_blocks, step.swapped_in_blocks)
        return work

    def _swaps(self, step: Step) -> tuple[Swap, Swap]:
        """List the pages that leave and the pages that return; victims that are recomputed begin anew."""
        blocks = _blocks(step)
        out: list[tuple[int, int]] = []
        back: list[tuple[int, int]] = []
        for preemption in step.plan.preempt:
            story = self.stories.get(preemption.request.row)
            if story is None:  # a victim that has computed nothing yet
                continue
            if preemption.swap:
                story.host_table = list(blocks.host_tables[preemption.request.row])
                out += zip(story.table[: len(story.host_table)], story.host_table, strict=True)
            else:
                story.computed = 0
            story.table = []
        for request in step.plan.resume:
            story = self.stories[request.row]
            story.table = list(blocks.tables[request.row])
            back += zip(story.host_table, story.table, strict=False)  # the last page may be of its next token
            story.host_table = []
        return _swap(out), _swap(back)

    def _decodes(self, step: Step) -> tuple[ScheduledPart, ...]:
        """The requests that compute one token, finished ones in their slots among them."""
        tables = _blocks(step).tables
        parts = []
        for live in step.decoders:
            story = self.stories[live.row]
            is_held = live.status is FINISHED
            assert is_held or live.num_computed_tokens == story.computed
            story.table = list(tables[live.row])
            token = story.tokens[story.computed - story.padding]
            parts.append(ScheduledPart(live.row, story.computed, [token], story.table, story.padding, is_held=is_held))
        return tuple(parts)

    def _chunk(self, step: Step, live: RequestState, tokens: int, padded: int) -> ScheduledPart:
        """A prompt chunk: of padding, prompt and, after a preemption, the answer so far."""
        story = self._story(step, live)
        assert story.computed in (0, live.base_computed), f"row {live.row} has {story.computed} tokens in its pages"
        story.computed = live.base_computed  # from the prefix cache, at first
        story.padding = live.padding_tokens
        story.table = list(_blocks(step).tables[live.row])
        begin = max(0, live.base_computed - story.padding)
        ids = [0] * padded + story.tokens[begin : begin + tokens - padded]
        samples = tokens == live.num_tokens_to_compute
        return ScheduledPart(live.row, story.computed, ids, story.table, story.padding, samples)

    def _story(self, step: Step, live: RequestState) -> RequestTrace:
        story = self.stories.get(live.row)
        if story is None:
            model = self.backend.model
            request = step.requests[live.row]
            most = live.input_tokens + request.output_tokens - 1
            if most > model.max_model_len:
                what = f"request {live.request_id} comes to {most} tokens, {model.name} takes {model.max_model_len}"
                raise InputError(what, hint="model.max_model_len, or shorter requests")
            prompt = prompt_tokens(request, model.vocab, self._seed).tolist()
            answer = answer_tokens(request, model.vocab)
            known = None if answer is None else answer.tolist()
            story = self.stories[live.row] = RequestTrace(prompt, len(prompt), request.output_tokens, known)
        return story

    # Committing

    def _commit(self, work: Work, done: Done) -> None:
        given = iter(zip(done.tokens, done.best, strict=True))
        for part in work.parts:
            story = self.stories[part.row]
            story.computed += len(part.tokens)
            if part.samples:
                story.take(*next(given))


def _blocks(step: Step) -> BlockTables:
    blocks = step.block_tables
    assert blocks is not None, "the engine gives block ids to an executor that wants them"
    return blocks


def _swap(moves: list[tuple[int, int]]) -> Swap:
    return Swap(tuple([source for source, _ in moves]), tuple([target for _, target in moves]))
