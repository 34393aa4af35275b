"""The probes of a profile: shapes of steps and of kernels, over a grid that fits the device's pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, pairwise, product

import numpy as np

from gpu_backend.backend import Backend
from gpu_backend.decoder import Operators
from gpu_backend.weights import random_pages
from gpu_backend.work import ScheduledPart, Work, step_arrays
from simulator.lockstep.lockstep_run import ControlStep
from simulator.timing.cost import COUNTS


@dataclass(frozen=True, slots=True)
class Grid:
    """How far a profile goes: decodes of a step, KV tokens of a request, tokens of a step."""

    max_num_seqs: int
    max_context: int
    max_num_batched_tokens: int


GRIDS = {"cuda": Grid(256, 32768, 8192), "cpu": Grid(64, 2048, 512)}


@dataclass(frozen=True, slots=True)
class Probe:
    """One figure to measure: a row's kind and columns, and what makes the work that is timed.

    `make` prepares, untimed, and returns the work; its seconds are divided by `of` (layers that it did).
    """

    kind: str
    columns: Mapping[str, int | str]
    make: Callable[[], Callable[[], object]]
    of: int = 1


class Probes:
    """All probes of a backend."""

    def __init__(self, backend: Backend, grid: Grid, seed: int = 0) -> None:
        self._backend = backend
        self._grid = grid
        self._operators = Operators(backend.decoder)
        self._random = np.random.default_rng(seed)
        self._capacity = backend.pool.num_blocks * backend.block_size
        random_pages(backend.pool.kv, seed)

    def all(self) -> list[Probe]:
        """Kernels and whole steps, 150 to 250 shapes on a grid of the usual size, all operators of one taken as one."""
        return [*self.dense(), *self.attention(), *self.skewed(), *self.steps()]

    def canary(self) -> Probe:
        """A step in the middle of the grid, to be repeated: it tells whether the device has changed meanwhile."""
        seqs = max(1, self._grid.max_num_seqs // 4)
        context = max(2, min(self._grid.max_context // 4, self._capacity // seqs // 2))
        return self._step([context] * seqs, [])

    # Kernels

    def dense(self) -> Iterator[Probe]:
        """Every operator that depends on the number of tokens alone, and head and sampler on the number of rows."""
        layers = self._backend.model.layers
        for tokens in _tokens(self._grid.max_num_batched_tokens):
            for op, work in self._operators.of_tokens(tokens).items():
                yield Probe("dense", {"op": op, "tokens": tokens}, partial(_ready, work), layers)
            for op, work in self._operators.of_step(tokens).items():
                yield Probe("dense", {"op": op, "tokens": tokens}, partial(_ready, work))
            if self._backend.model.experts:
                work, activated = self._operators.experts(tokens)
                columns = {"tokens": tokens, "activated": activated}
                yield Probe("experts", columns, partial(_ready, work), self._backend.model.moe_layers)
        for seqs in _doubling(1, self._grid.max_num_seqs):
            for op, work in self._operators.of_sampled(seqs).items():
                yield Probe("sampled", {"op": op, "seqs": seqs}, partial(_ready, work))

    def attention(self) -> Iterator[Probe]:
        """One layer's attention: decodes alone, a chunk alone, both."""
        grid = self._grid
        for seqs, context in product(_doubling(1, grid.max_num_seqs, 4), _doubling(16, grid.max_context, 4)):
            yield from self._attend([context] * seqs, 0, 0)
        chunks = _doubling(16, grid.max_num_batched_tokens, 4)
        for chunk, cached in product(chunks, (0, *_doubling(128, grid.max_context // 2, 8))):
            yield from self._attend([], chunk, cached)
        counts = _doubling(4, grid.max_num_seqs, 8)
        contexts = _doubling(64, grid.max_context // 4, 8)
        for chunk, count, context in product(chunks[::2], counts, contexts):
            yield from self._attend([context] * count, chunk, 0)

    def skewed(self) -> Iterator[Probe]:
        """Decodes of two lengths, alone and beside a chunk; the time at their mean is a row of its own after each."""
        grid, layers = self._grid, self._backend.model.layers
        shorts = sorted({64, max(16, grid.max_context // 8)})
        chunks = (0, max(16, grid.max_num_batched_tokens // 8))
        for seqs, share, short, chunk in product(_doubling(8, grid.max_num_seqs, 4), (0.125, 0.5), shorts, chunks):
            long_seqs, long = max(1, int(seqs * share)), min(8 * short, grid.max_context)
            contexts = [long] * long_seqs + [short] * (seqs - long_seqs)
            if long <= short or long_seqs == seqs or sum(contexts) + chunk > self._capacity:
                continue
            columns = {"seqs": seqs, "long_seqs": long_seqs, "short": short, "long": long, "chunk": chunk, "cached": 0}
            yield Probe("skew", columns, self._attention_of(contexts, chunk, 0), layers)
            mean = round(sum(contexts) / seqs)
            even = {"chunk": chunk, "cached": 0, "seqs": seqs, "context": mean, "chunks": 1}
            yield Probe("attention", even, self._attention_of([mean] * seqs, chunk, 0), layers)

    def _attend(self, contexts: Sequence[int], chunk: int, cached: int) -> Iterator[Probe]:
        if sum(contexts) + chunk + cached > self._capacity or cached + chunk > self._grid.max_context:
            return
        context = contexts[0] if contexts else 0
        columns = {"chunk": chunk, "cached": cached, "seqs": len(contexts), "context": context, "chunks": 1}
        yield Probe("attention", columns, self._attention_of(contexts, chunk, cached), self._backend.model.layers)

    def _attention_of(self, contexts: Sequence[int], chunk: int, cached: int) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            work = self.work(contexts, [(cached, chunk)] if chunk else [])
            rows = step_arrays(work.parts, len(work.decodes), self._backend.block_size)
            return self._operators.attention(rows)

        return make

    # Whole steps

    def steps(self) -> Iterator[Probe]:
        """Decodes over batch and context, prompts over length and prefix, skewed decodes, and mixtures of all."""
        grid = self._grid
        for seqs, context in product(_doubling(1, grid.max_num_seqs), _doubling(16, grid.max_context, 4)):
            yield from self._possible([context] * seqs, [])
        chunks = _doubling(16, grid.max_num_batched_tokens)
        for chunk, cached in product(chunks, (0, *_doubling(128, grid.max_context // 2, 8))):
            yield from self._possible([], [(cached, chunk)])
        for _ in range(30):
            yield from self._possible(self._contexts(), [])
        for _ in range(30):
            contexts = self._contexts()
            left = max(1, grid.max_num_batched_tokens - len(contexts))
            count = int(self._random.integers(1, 4))
            tokens = [max(1, int(left ** self._random.uniform(0.3, 1.0)) // count) for _ in range(count)]
            draw, most = self._random, grid.max_context // 4
            prefix = [int(draw.choice([0, 0, 0, 1])) * int(draw.integers(most)) for _ in tokens]
            yield from self._possible(contexts, list(zip(prefix, tokens, strict=True)))

    def _contexts(self) -> list[int]:
        """Decodes of log-normal contexts, as traffic has them."""
        grid = self._grid
        seqs = int(2 ** self._random.uniform(0, np.log2(grid.max_num_seqs)))
        highest = np.log2(grid.max_context) - 1
        middle = 2 ** self._random.uniform(min(5, highest), highest)
        drawn = self._random.lognormal(np.log(middle), self._random.uniform(0.2, 1.2), seqs)
        contexts: list[int] = np.clip(drawn, 2, grid.max_context).astype(int).tolist()
        return contexts

    def _possible(self, contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> Iterator[Probe]:
        if sum(contexts) + sum(map(sum, chunks)) <= self._capacity - self._backend.block_size * len(contexts):
            yield self._step(contexts, chunks)

    def _step(self, contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> Probe:
        shape = self.work(contexts, chunks).shape
        columns = dict(zip(COUNTS, shape, strict=False))

        def make() -> Callable[[], object]:
            return self._backend.forward(self.work(contexts, chunks))

        return Probe("step", columns, make)

    def work(self, contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> Work:
        """Decodes of so many KV tokens after the step, and chunks as (prefix, tokens), in pages drawn at random."""
        size = self._backend.block_size
        wanted = [(context - 1, 1) for context in contexts] + list(chunks)
        pages = [-(-(before + tokens) // size) for before, tokens in wanted]
        drawn = self._random.permutation(self._backend.pool.num_blocks)[: sum(pages)] + 1
        ends = np.cumsum([0, *pages])
        vocab = self._backend.model.vocab
        parts = [
            ScheduledPart(row, before, self._random.integers(0, vocab, tokens).tolist(), drawn[start:stop].tolist())
            for row, ((before, tokens), (start, stop)) in enumerate(zip(wanted, pairwise(ends), strict=True))
        ]
        return Work(tuple(parts[: len(contexts)]), tuple(parts[len(contexts) :]))


def _ready(work: Callable[[], object]) -> Callable[[], object]:
    return work


def _doubling(first: int, last: int, factor: int = 2) -> list[int]:
    """first, first x factor, ... and `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]


def _tokens(last: int) -> list[int]:
    """Numbers of tokens on both sides of the edges of a GEMM's tiles."""
    edges = [1, 2, 4, 8, 16, 32, 64, 65, 128, 129, 192, 256, 257, 384, 512, 513, 1024, 1025, 2048, 2049]
    edges += [4096, 6144, 8192, 12288, 16384]
    return [count for count in edges if count < last] + [last]


# Fixed steps on a backend, timed now and then: they tell whether the device is still as it was for the profile.
#
# They read pages from all over the pool, as traffic does, so that a neighbour who takes cache or memory bandwidth
# slows them as it slows steps. They write to the null block alone, so they may be timed at any moment.

_CONTEXT = 1024  # at most, of a control's decodes


def control_steps(grid: Grid) -> dict[str, ControlStep]:
    """A step in the middle of the grid for each regime that computes."""
    seqs, chunk = max(1, grid.max_num_seqs // 2), max(1, grid.max_num_batched_tokens // 2)
    context = max(2, min(grid.max_context // 4, _CONTEXT))
    return {
        "decode": ControlStep(seqs, context, 0),
        "prefill": ControlStep(0, 0, chunk),
        "mixed": ControlStep(seqs, context, chunk),
    }


class Controls:
    """The control steps of some regimes on a backend."""

    def __init__(self, backend: Backend, steps: Mapping[str, ControlStep]) -> None:
        self._backend = backend
        pages = np.random.default_rng(0).permutation(backend.pool.num_blocks) + 1
        self._parts = {name: _parts(step, pages.tolist(), backend.block_size) for name, step in steps.items()}

    def timed(self) -> dict[str, float]:
        """Time each step, in terms of the canary; a step whose launches could not be hidden is left out."""
        device, found = self._backend.device, {}
        for name, (decodes, parts) in self._parts.items():
            seconds = device.seconds(*self._backend.launchable(parts, decodes))
            if device.is_hidden:
                found[name] = seconds
        return found


def _parts(step: ControlStep, pages: list[int], block_size: int) -> tuple[int, tuple[ScheduledPart, ...]]:
    """The number of decodes, and all parts. The page that a decode writes to, its last, is the null block."""
    drawn = cycle(pages)
    read = -(-step.context // block_size) - 1
    parts = [ScheduledPart(row, step.context - 1, [0], [*islice(drawn, read), 0]) for row in range(step.decodes)]
    wide = (0,) * -(-step.chunk // block_size)
    parts += [ScheduledPart(step.decodes, 0, [0] * step.chunk, wide)] if step.chunk else []
    return step.decodes, tuple(parts)
