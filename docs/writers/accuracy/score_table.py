"""A table of errors by group of runs, for the pages of measured servers."""

from collections.abc import Iterator, Mapping

from docs.writers.tables import table

_COLUMNS = {
    "refused": "refused (%)",
    "tpot_median": "TPOT median (%)",
    "tpot_p90": "p90",
    "ttft_median": "TTFT median (%)",
    "ttft_p90": "p90",
}


def score_table(name: str, groups: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Return the lines of a table with a line for each group that has rows; `-` for a figure that it lacks."""
    rows = (
        [group, f"{found['rows']:.0f}", *(f"{100 * found[each]:.1f}" if each in found else "-" for each in _COLUMNS)]
        for group, found in groups.items()
        if found["rows"]
    )
    return table((name, "rows", *_COLUMNS.values()), rows)
