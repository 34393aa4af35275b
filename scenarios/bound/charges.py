"""Prices of requests that no schedule undercuts: alone, and as shares of steps that many compute together.

**Alone.** A request that computes in a step makes it last at least `floor.s` of its own counts, as every coefficient of
a `StepFloor` is 0 or more. Its steps come one after the other. So the sum over the fewest steps that it needs, each
with its own counts alone, is a bound on its time, whatever else happens.

**Work.** A step's seconds are shared out over what it computes so that no more is charged than it lasts. What a floor
has for tokens, rows, contexts and pairs is charged to these. What it has for the step itself is charged in one of three
ways, for a step holds at most `seqs` requests, `tokens` tokens, and requests of `kv_tokens` KV tokens together:

    step >= step x requests / seqs        step >= step x tokens / tokens        step >= step x contexts / kv_tokens

Each is a floor without a constant (`amortised`), and so is any mean of them. Where layers keep different things, the
last is `step x blocks held / blocks of the pool`, with those that `HeldBlocks` proves. A request's charges then add up
over all its steps, whoever else is in them: they are its work. Replicas together do at most `replicas` seconds of work
a second.

**Preemption by recompute.** The token after k others costs a decode, whose context is m = prompt + k, or a prefill of m
tokens (with a prefix cache: of one token behind m - 1). A decode is charged with the cheaper of the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scenarios.bound.held import HeldBlocks
from scenarios.bound.requests import Requests
from simulator.timing.floor import StepFloor

Floats = NDArray[np.float64]


@dataclass(frozen=True)  # no slots: what follows from the limits is worked out once
class Server:
    """The limits of a scenario's replicas, whatever the scheduler: most of each in a step, or in memory.

    `kv_tokens` None: requests may share KV, so their contexts may add up to more than the pool holds. `held` is there
    where the cache has several KV groups, and says what each request takes of it, instead of tokens.
    """

    replicas: int
    seqs: int
    tokens: int
    kv_tokens: int | None
    caches: bool
    floors: tuple[StepFloor, ...]
    held: HeldBlocks | None = None

    def amortised(self) -> Iterator[tuple[str, StepFloor, float]]:
        """Floors without a constant, with what limits the sharing of a step: slots, tokens or memory.

        The last entry is in seconds, for each block that a request holds beside those of its context.
        """
        for floor in self.floors:
            at_once, rest = floor.step, floor._replace(step=0.0)
            yield "slots", rest._replace(row=rest.row + at_once / self.seqs), 0.0
            if at_once > 0:
                yield "tokens", rest._replace(token=rest.token + at_once / self.tokens), 0.0
                if self.kv_tokens is not None:
                    each = 0.0 if self.held is None else at_once / self.held.pool
                    token = at_once / self.kv_tokens if self.held is None else each * self.held.per_token
                    contexts = rest.decode_context + token, rest.prefill_context + token
                    yield "memory", rest._replace(decode_context=contexts[0], prefill_context=contexts[1]), each


@dataclass(frozen=True)  # no slots, likewise
class Charges:
    """What requests cost at least on a server, in seconds, an entry a request."""

    server: Server
    requests: Requests

    @cached_property
    def first_token_alone_s(self) -> Floats:
        """Seconds from the first step of its prompt to its first token."""
        return self._most(self._prompt_s(floor) for floor in self.server.floors)

    @cached_property
    def decode_alone_s(self) -> Floats:
        """Seconds from its first token to its last."""
        return self._most(self._decode_s(floor) for floor in self.server.floors)

    @cached_property
    def works(self) -> list[tuple[str, Floats, Floats]]:
        """What limits the sharing, the work of the prompt and that of the decodes, for each amortised floor."""
        found = []
        for limit, floor, block_s in self.server.amortised():
            prompt, decode = self._prompt_s(floor), self._decode_s(floor)
            if block_s:
                prompt, decode = prompt + block_s * self._beside[0], decode + block_s * self._beside[1]
            found.append((limit, prompt, decode))
        return found

    @cached_property
    def _beside(self) -> tuple[Floats, Floats]:
        """Blocks beside those of the context, summed over the steps of a prompt, and over those of the decodes.

        The prompt's last chunk has its whole context, others at least a token; every decode's is longer than the
        prompt.
        """
        assert self.server.held is not None
        prompt = self.requests.prompt.astype(np.float64)
        decodes = self.requests.outputs.astype(np.float64) - 1
        chunks = np.ceil(self.requests.computed / self.server.tokens)
        beside = self.server.held.beside
        return beside(prompt) + (chunks - 1) * beside(np.ones(len(prompt))), decodes * beside(prompt + 1)

    def _most(self, each: Iterator[Floats]) -> Floats:
        """The largest for each request: every floor holds, so the best of them does."""
        found = np.zeros(len(self.requests))
        for seconds in each:
            found = np.maximum(found, seconds)
        return found

    def _prompt_s(self, floor: StepFloor) -> Floats:
        """Charges of a prompt: as many steps and rows as it has chunks, its tokens and pairs, its context once."""
        prompt, computed = self.requests.prompt.astype(np.float64), self.requests.computed.astype(np.float64)
        chunks = np.ceil(computed / self.server.tokens)
        pairs = computed * (prompt - computed) + computed * (computed + 1) / 2
        steps = chunks * (floor.step + floor.row)
        return steps + floor.token * computed + floor.prefill_context * prompt + floor.pair * pairs

    def _decode_s(self, floor: StepFloor) -> Floats:
        """Charges of all tokens but the first, which the prompt gives: contexts prompt + 1, prompt + 2, ..."""
        prompt, decodes = self.requests.prompt.astype(np.float64), self.requests.outputs.astype(np.float64) - 1
        again = np.full(len(prompt), floor.prefill_context + floor.pair)  # a token of context, by a prefill of one
        if not self.server.caches:  # by a prefill of all prompt + 1 tokens, or more
            again = floor.prefill_context + floor.pair * (prompt + 2) / 2 + floor.token * prompt / (prompt + 1)
        contexts = decodes * prompt + decodes * (decodes + 1) / 2
        found: Floats = decodes * (floor.step + floor.token + floor.row) + contexts * again.clip(
            max=floor.decode_context
        )
        return found
