"""Images of a trace's requests: as the native column `images` writes them, or only counted.

An entry is `TOKENS`, or `NAME:TOKENS@OFFSET`. Equal names are equal images; without one an image is its request's own.
Without an offset an image lies behind the one before it, the first at the start of the prompt. Its tokens are among the
prompt's, of which at least one follows the last image.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.traces.rows import RowError
from simulator.request import Image

_ENTRY = re.compile(r"(?:(?P<name>[^\s:@]+):)?(?P<tokens>[1-9]\d{0,8})(?:@(?P<offset>\d{1,9}))?")


def pictures(value: object, name: str) -> tuple[Image, ...] | None:
    """Images of a field, a text or a list; one without a name of its own has none yet."""
    words = value if isinstance(value, list) else str(value).split()
    found: list[Image] = []
    for word in words:
        entry = _ENTRY.fullmatch(str(word))
        if entry is None:
            raise RowError(f"{name} has an entry that is neither TOKENS nor NAME:TOKENS@OFFSET", word)
        least = found[-1].end if found else 0
        offset = least if entry["offset"] is None else int(entry["offset"])
        if offset < least:
            raise RowError(f"{name} has an image that begins before the one before it ends", word)
        found.append(Image(entry["name"] or "", offset, int(entry["tokens"])))
    return tuple(found) or None


def written(images: Sequence[Image]) -> list[str] | None:
    """The images of a request as `pictures` reads them; None for none."""
    names = [f"{image.identifier}:" if image.identifier else "" for image in images]
    return [f"{name}{image.tokens}@{image.offset}" for name, image in zip(names, images, strict=True)] or None


def images_of(
    extra: Mapping[str, Sequence[Any]],
    inputs: Sequence[int],
    each_tokens: int | None,
    input_scale: float,
    places: Sequence[int],
) -> list[tuple[Image, ...]] | None:
    """The images of the requests at `places`. Those that are only counted have `each_tokens`, or what the prompt holds.

    None where no request has any, or none of a known size, or where prompts are scaled: an image is as large as it is.
    """
    listed, counted = extra.get("images"), extra.get("num_images")
    if input_scale != 1.0 or (listed is None and (counted is None or each_tokens is None)):
        return None
    found: list[tuple[Image, ...]] = []
    for row, place in enumerate(places):
        images: Sequence[Image] = (listed[place] if listed is not None else None) or ()
        if counted is not None and each_tokens is not None and counted[place]:
            images = of_count(int(counted[place]), int(inputs[place]), each_tokens)
        found.append(
            tuple(
                image if image.identifier else image._replace(identifier=f"{row}.{number}")
                for number, image in enumerate(images)
            )
        )
    return found if any(found) else None


def of_count(count: int, input_tokens: int, each_tokens: int) -> tuple[Image, ...]:
    """Images that a trace only counts: one behind the other from the beginning, each as large as the prompt holds."""
    tokens = min(each_tokens, (input_tokens - 1) // count) if count else 0
    return tuple(Image("", at * tokens, tokens) for at in range(count)) if tokens > 0 else ()


def size_notes(extra: Mapping[str, Sequence[Any]], each_tokens: int | None, input_scale: float) -> tuple[str, ...]:
    """A note where images are text: nothing says how large they are, or prompts are scaled."""
    if input_scale != 1.0 and any(extra.get("images") or ()):
        return (f"dropped all images: they do not grow with the prompts (input_scale {input_scale:g})",)
    if each_tokens is not None or "num_images" not in extra:
        return ()
    return ("columns not read: NumImages (trace.image_tokens would give images a size)",)
