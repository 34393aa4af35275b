"""How long decodes take beside prompts, from cards where both were measured in one kernel: one power for all heads.

    us(prompt and decodes) = us(prompt) + (query heads / KV heads)^power x (us(decodes) - launch)

over steps of prompt chunks of 64 tokens and more beside decodes of 1,000 to 400,000 keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.rows import Table
from tools.tables.profiles import measured_together, read_shipped

Array = NDArray[np.float64]

POWERS = np.arange(0.0, 1.001, 0.01)
FEWEST_TOKENS, FEWEST_KEYS, MOST_KEYS = 64, 1_000, 400_000


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mixed steps of a profile's card: each with the time of its prompt alone, and of its decodes beyond a launch."""

    name: str
    card: str
    group: float  # query heads for each KV head
    us: Array
    prompt_us: Array
    decode_us: Array

    def errors(self, power: float) -> Array:
        """Relative errors of the form with this power."""
        return np.asarray((self.prompt_us + self.group**power * self.decode_us) / self.us - 1.0)


@dataclass(frozen=True, slots=True)
class LeftOutCard:
    """A card's steps predicted from the other cards: the power that these gave, median error and bias with it, and
    those of decodes that take as long as alone. Fractions."""

    name: str
    steps: int
    power: float
    median: float
    bias: float
    plain_median: float
    plain_bias: float


def read_mixed(root: Path) -> list[Mixed]:
    """The mixed steps of all shipped profiles whose source measured them; `root` holds the sources."""
    return [
        mixed_steps(read_shipped(entry, root).table("attention"), entry.name, entry.gpu, heads / kv_heads)
        for entry, heads, kv_heads in measured_together()
    ]


def mixed_steps(table: Table, name: str, card: str, group: float) -> Mixed:
    """The mixed rows of joint attention of which both parts were measured alone too."""
    rows = [dict(zip(table, values, strict=True)) for values in zip(*(v.tolist() for v in table.values()), strict=True)]
    prompts: dict[tuple[float, float], list[float]] = {}
    decodes: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        if not row["seqs"]:
            prompts.setdefault((row["chunk"], row["cached"]), []).append(row["us"])
        elif not row["chunk"]:
            decodes.setdefault((row["seqs"], row["context"]), []).append(row["us"])
    alone, launch = _medians(prompts), min(_medians(decodes).values())
    of_decodes = _medians(decodes)
    kept = [
        (row["us"], alone[row["chunk"], row["cached"]], of_decodes[row["seqs"], row["context"]] - launch)
        for row in rows
        if row["chunk"] >= FEWEST_TOKENS
        and FEWEST_KEYS <= row["seqs"] * row["context"] <= MOST_KEYS
        and (row["chunk"], row["cached"]) in alone
        and (row["seqs"], row["context"]) in of_decodes
    ]
    us, prompt_us, decode_us = np.array(kept).reshape(-1, 3).T
    return Mixed(name, card, group, us, prompt_us, decode_us)


def fit_power(steps: Sequence[Mixed]) -> float:
    """The power with the least median error, each profile counting alike."""
    errors = [np.mean([np.median(np.abs(each.errors(power))) for each in steps]) for power in POWERS]
    return float(POWERS[int(np.argmin(errors))])


def leave_one_card_out(steps: Sequence[Mixed]) -> list[LeftOutCard]:
    """Each profile's steps, with the power of all cards but its own."""
    found = []
    for each in steps:
        power = fit_power([other for other in steps if other.card != each.card])
        errors, plain = each.errors(power), each.errors(0.0)
        found.append(LeftOutCard(each.name, len(each.us), round(power, 2), *_spread(errors), *_spread(plain)))
    return found


def _spread(errors: Array) -> tuple[float, float]:
    return float(np.median(np.abs(errors))), float(errors.mean())


def _medians(times: Mapping[tuple[float, float], Sequence[float]]) -> dict[tuple[float, float], float]:
    return {place: float(np.median(each)) for place, each in times.items()}
