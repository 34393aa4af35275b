"""The way between clients and an engine: HTTP, tokenising, detokenising, and a process that streams all answers.

On public runs of vLLM 0.15 over HTTP, what a simulation from the arrival at the engine misses of TTFT is additive and
the same at all percentiles: a constant, and something for each request that runs. All of it stands behind the engine:
a request's tokens reach its client later than they are sampled by one delay, which its first token decides, so the
gaps between them stay as they are. What the engine sees and decides does not change, unless clients react to answers.

Tokenising takes a time for each token of the prompt, one prompt after another. Clients that react to answers meet it on
the way in (`Clients`): their requests reach the engine one by one. For all others, and for those that a server recorded
as they left (`LiveTraffic`), it is a part of the delay.
What a token takes depends on the model's tokeniser and on the text. Hugging Face's tokenizers, one core of an AMD EPYC,
7,370 random tokens as text (so benchmarks make prompts): Llama 3.1 6.5 us a token, gpt-oss 9, DeepSeek-V3 and Qwen3 10.
The same of English prose: 3.6, 5.9, 4.5 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError

TOKENISED_S: Mapping[int, float] = {128256: 6e-6, 201088: 6e-6}
"""Seconds a prompt token by the size of the vocabulary, where it is not the usual 10 microseconds: Llama 3's, and
gpt-oss's, whose servers are quicker than the tokeniser measured here (TTFT of InferenceX's runs, two engines)."""


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Seconds between engine and client: `fixed_s`, `per_running_s` for each request that runs on the replica, and
    `per_prompt_token_s` for each token of the prompt.

    Those that run are counted when the first token is sampled, the request itself among them. InputError for a time
    that is negative or not finite.
    """

    fixed_s: float = 0.0
    per_running_s: float = 0.0
    per_prompt_token_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fixed_s", "per_running_s", "per_prompt_token_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError(f"front_end: {name} must be 0 or more seconds, not {value}")

    def __bool__(self) -> bool:
        """True if the front end adds any delay."""
        return self.fixed_s > 0 or self.per_running_s > 0 or self.per_prompt_token_s > 0

    def figures(self) -> dict[str, float]:
        """The figures by key; without that of a prompt token where it is 0."""
        return {name: value for name, value in asdict(self).items() if value or name != "per_prompt_token_s"}

    def of(self, vocab: int) -> FrontEnd:
        """The front end of a model whose tokeniser has so many tokens."""
        return replace(self, per_prompt_token_s=TOKENISED_S.get(vocab, self.per_prompt_token_s))

    def delay_s(self, running: int) -> float:
        """Seconds by which a request's tokens are late that began when so many ran."""
        return self.fixed_s + self.per_running_s * running


NO_FRONT_END = FrontEnd()


class FirstTokens:
    """When each request's first token was sampled and how many ran then, by row: a replica tells it so.

    Of an answer that comes whole, only the end counts: its first token has no time.
    """

    __slots__ = ("_at_s", "_running", "front_end")

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end
        self._at_s: dict[int, float] = {}
        self._running: dict[int, int] = {}

    def sampled(self, row: int, running: int, at_s: float, *, streams: bool) -> None:
        """The first token of a request is sampled at `at_s`, while so many run."""
        self._running[row] = running
        self._at_s[row] = at_s if streams else inf

    def at_s(self, row: int) -> float:
        """When the first token was sampled; infinity where there is none, or it does not stream."""
        return self._at_s.get(row, inf)

    def delay_s(self, row: int) -> float:
        """Seconds by which what the engine tells of a request is late."""
        return self.front_end.delay_s(self._running.get(row, 0))

    def take_over(self, other: FirstTokens) -> None:
        """Add what was told elsewhere."""
        self._running.update(other._running)
        self._at_s.update(other._at_s)

    def of_all(self, requests: int, prompts: NDArray[np.int64] | None = None) -> NDArray[np.float64] | None:
        """Delays of so many requests; None where nothing lies between clients and engine.

        `prompts` are the tokens of each, where they were not tokenised on the way in.
        """
        if not self.front_end:
            return None
        delays_s = np.array([self.delay_s(row) for row in range(requests)])
        each_s = self.front_end.per_prompt_token_s
        return delays_s if prompts is None or not each_s else delays_s + each_s * prompts
