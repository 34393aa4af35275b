"""Images of a class's requests, drawn."""

from collections.abc import Callable

import numpy as np

from scenarios.generate.lengths import draw_lengths
from scenarios.schema.images import ImagesConfig
from simulator.request import Image


def draw_images(
    config: ImagesConfig, class_name: str, behind: int, count: int, stream: Callable[[str], np.random.Generator]
) -> list[tuple[Image, ...]]:
    """The images of each of `count` prompts, from token `behind` on. More prompts never change the first ones."""
    with_any = stream("images").random(count) < config.share
    number = config.count
    counts = np.full(count, number) if isinstance(number, int) else draw_lengths(number, stream("image_count"), count)
    counts = np.where(with_any, counts, 0)
    total = int(counts.sum())
    if config.different is None:
        sizes = draw_lengths(config.tokens, stream("image_tokens"), total)
        which = np.arange(total)
    else:
        which = stream("image").integers(config.different, size=total)
        sizes = draw_lengths(config.tokens, stream("image_tokens"), config.different)[which]
    entries = iter(zip(which.tolist(), sizes.tolist(), strict=True))
    found = []
    for images in counts.tolist():
        at, mine = behind, []
        for _ in range(images):
            name, tokens = next(entries)
            mine.append(Image(f"{class_name}-{name + 1}", at, tokens))
            at += tokens
        found.append(tuple(mine))
    return found
