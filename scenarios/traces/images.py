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
    return [f"{image.identifier}:{image.tokens}@{image.offset}" for image in images] or None


def images_of(
    extra: Mapping[str, Sequence[Any]], inputs: Sequence[int], each_tokens: int | None, places: Sequence[int]
) -> list[tuple[Image, ...]] | None:
    """The images of the requests at `places`. Those that are only counted have `each_tokens`, or what the prompt holds.

    None where no request has any, or none of a known size.
    """
    listed, counted = extra.get("images"), extra.get("num_images")
    if listed is None and (counted is None or each_tokens is None):
        return None
    found: list[tuple[Image, ...]] = []
    for row, place in enumerate(places):
        images: Sequence[Image] = (listed[place] if listed is not None else None) or ()
        if counted is not None and each_tokens is not None and counted[place]:
            count = int(counted[place])
            tokens = min(each_tokens, (int(inputs[place]) - 1) // count)
            images = [Image("", at * tokens, tokens) for at in range(count)] if tokens > 0 else ()
        found.append(
            tuple(
                image if image.identifier else image._replace(identifier=f"{row}.{number}")
                for number, image in enumerate(images)
            )
        )
    return found if any(found) else None
