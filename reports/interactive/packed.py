"""Numbers as a page carries them: few characters each, and no more digits than a picture can show."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from reports.drawing.style import Picture
from simulator.results.records import Floats

Json = Mapping[str, Any]
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def rounded(values: ArrayLike, digits: int = 3) -> list[float | int | None]:
    """Values with so many significant digits; None where there is none."""
    found: list[float | int | None] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        if value != value or value in (float("inf"), float("-inf")):
            found.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        found.append(int(short) if short == int(short) else short)
    return found


def steps_between(times_s: Floats, unit_s: float) -> list[int]:
    """Rising times as whole units: the first, then each one's distance to the one before. Errors do not add up."""
    whole = np.rint(times_s / unit_s).astype(np.int64)
    return [] if not len(whole) else [int(whole[0]), *np.diff(whole).tolist()]


def json_text(content: Json) -> Markup:
    """JSON that can stand in a `<script>`: no text in it ends the element or begins another."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, escaped in _UNSAFE.items():
        text = text.replace(sign, escaped)
    return Markup(text)


def marks_data(pictures: Iterable[Picture]) -> Json:
    """The words at each spot of the pictures that have any, and the curves that can be hidden, by name."""
    return {
        picture.name: {
            "x": [spot.x for spot in picture.spots],
            "y": [spot.y for spot in picture.spots],
            "of": [spot.of for spot in picture.spots],
            "words": [spot.words for spot in picture.spots],
            "series": [{"label": each.label, "color": each.color} for each in picture.series],
        }
        for picture in pictures
        if picture.spots
    }
