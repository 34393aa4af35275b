"""Kinds of layers of a model, a letter each.

The letters are those of Nemotron-H's `hybrid_override_pattern`, and W, C, G beside them. A pattern goes on from its
start where the model has more layers than it has letters.
"""

from collections.abc import Sequence
from typing import Final

from simulator.errors import InputError

FULL, WINDOW, CHUNK, GATED_DELTA, MAMBA, DENSE, EXPERTS = "*WCGM-E"
WORDS: Final = {
    FULL: "full_attention", WINDOW: "sliding_attention", CHUNK: "chunked_attention", GATED_DELTA: "linear_attention",
    MAMBA: "mamba", DENSE: "mlp", EXPERTS: "moe",
}  # fmt: skip
"""Letters with the words of `layer_types` in a config.json."""
ATTENTION: Final = FULL + WINDOW + CHUNK
STATES: Final = GATED_DELTA + MAMBA
FEED_FORWARD: Final = DENSE + EXPERTS
GATED_DELTA_CHECKPOINT = 64
"""Tokens at whose multiples FlashInfer's kernel of gated delta nets can save a state, on Hopper and Blackwell."""


def repeated(pattern: str, layers: int) -> str:
    """The pattern, repeated until it has so many letters."""
    return (pattern * -(-layers // len(pattern)))[:layers]


def shortest(letters: str) -> str:
    """The shortest pattern that is `letters` when repeated."""
    return next(letters[:n] for n in range(1, len(letters) + 1) if repeated(letters[:n], len(letters)) == letters)


def from_words(words: Sequence[object]) -> str:
    """The pattern of a config.json's `layer_types`. InputError on a word that is not known."""
    letters = {word: letter for letter, word in WORDS.items()}
    for word in words:
        if word not in letters:
            raise InputError(
                f"config.json: layer_types has {word!r}, which is not simulated", hint=f"known: {', '.join(letters)}"
            )
    return shortest("".join([letters[str(word)] for word in words])) if words else ""
