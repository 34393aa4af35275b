"""Data about pictures for the page's script: the words at each spot, and the curves that can be hidden."""

from __future__ import annotations

from collections.abc import Iterable

from reports.drawing.style import Picture
from reports.interactive.packed import Json


def marks_data(pictures: Iterable[Picture]) -> Json:
    """The marks of the pictures that have any, by name."""
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
