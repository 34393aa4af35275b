"""A matplotlib SVG as part of a page: no references outside, its own ids, the page's colours, no style attributes.

A page's Content-Security-Policy lets no `style` attribute work, as a file could bring one along. What matplotlib says
in them is said in presentation attributes (SVG 2, 6.6) instead.
"""

import re

from reports.drawing.style import CARD, GRID, HELD, INK, MUTED

# A page holds several pictures: their ids must differ.
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLORS = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)", HELD: "var(--held)"}
_RUN = re.compile(r'<g id="run-(\d+)[^"]*"')
_STYLE = re.compile(r'\sstyle="([^"]*)"')
_PATH = re.compile(r'(?<=\sd=")[^"]*')
# The style element has joins and caps: report.css says the same.
_NEEDLESS = re.compile(r"(?:<metadata>.*?</metadata>|<!--.*?-->|<style\b.*?</style>)\s*", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")  # matplotlib's indentation: half of what a browser would have to keep
_LONG = re.compile(r"(\d\.\d\d)\d+")


def inline(svg: str, name: str) -> str:
    """The `<svg>` element alone; `name` goes in front of its ids, and what is of a run gets its class."""
    text = svg[svg.index("<svg") :]
    text = _NEEDLESS.sub("", text)
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", text, count=3)
    text = _BETWEEN.sub("><", text.replace("xlink:href=", "href="))
    text = _RUN.sub(r'<g class="run-\1"', text)
    text = _IDS.sub(rf"\g<1>{name}-", text)
    text = _STYLE.sub(_attributes, text)
    text = _PATH.sub(lambda found: _LONG.sub(r"\1", found[0]), text)  # hundredths of a point
    for color, variable in _COLORS.items():
        text = text.replace(color, variable)
    return text


def themed(color: str) -> str:
    """A colour as a page has it: an ink follows the page's theme."""
    return _COLORS.get(color, color)


def _attributes(found: re.Match[str]) -> str:
    """`style="fill: none; stroke-width: 0.8"` as ` fill="none" stroke-width="0.8"`."""
    parts = (part.partition(":") for part in found[1].split(";") if part.strip())
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in parts)
