"""A matplotlib SVG as part of a page: no references outside, its own ids, the page's colours."""

from __future__ import annotations

import re

from reports.style import CARD, GRID, HELD, INK, MUTED

# A page holds several pictures: their ids must differ.
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLORS = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)", HELD: "var(--held)"}


def inline(svg: str, name: str) -> str:
    """The `<svg>` element alone; `name` goes in front of its ids."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", text, count=3)
    text = text.replace("xlink:href=", "href=")
    text = _IDS.sub(rf"\g<1>{name}-", text)
    for color, variable in _COLORS.items():
        text = text.replace(color, variable)
    return text
