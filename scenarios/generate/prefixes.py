"""Draw the shared text that each prompt begins with."""

from __future__ import annotations

import numpy as np

from scenarios.schema.prefix import Prefix
from simulator.request import PromptContent
from simulator.workload import Ints


def draw_groups(prefix: Prefix, rng: np.random.Generator, count: int) -> Ints:
    """The text of each of `count` prompts, from 0, the most popular; text k has a weight of 1 / (k + 1)^zipf."""
    if prefix.groups == 1:
        return np.zeros(count, dtype=np.int64)
    popularity = np.cumsum(np.arange(1, prefix.groups + 1, dtype=np.float64) ** -prefix.zipf)
    return np.searchsorted(popularity[:-1] / popularity[-1], rng.random(count), side="right")


def contents(prefix: Prefix, class_name: str, groups: Ints) -> list[PromptContent]:
    """The content of each prompt: one object a text. Text k is called NAME-k, from 1."""
    name = prefix.name or class_name
    used, place = np.unique(groups, return_inverse=True)
    texts = [PromptContent(prefix_group=f"{name}-{group + 1}", prefix_tokens=prefix.tokens) for group in used.tolist()]
    return [texts[index] for index in place.tolist()]
