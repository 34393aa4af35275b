"""A search in the form that the report takes: plain rows and points."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.pages.search_report import SearchPage
    from scenarios.search.search import Searched

_POINTS = 10  # of a line over the lengths of prompts


def search_page(found: Searched) -> SearchPage:
    """Return the content of a search's report."""
    from reports.pages.search_report import SearchPage
    from reports.tables.request_tables import TableRows
    from scenarios.search import words
    from scenarios.search.race import mean
    from scenarios.search.search import settings_of

    settings = tuple((key, str(value)) for key, value in settings_of(found.best.candidate).items())
    first = [mean(found.aim.metric, trial.rounds[0]) if trial.rounds else None for trial in found.trials]
    return SearchPage(
        f"{found.base.name}: a policy for {found.aim.metric}",
        f"{len(found.trials):,} candidates; {found.parts.words}. A simulation by batchlab.",
        [words.answer(found), *filter(None, [words.payers(found)])],
        found.deploy or "",
        TableRows(("setting", "best candidate"), settings, text_columns=2),
        TableRows(words.HELD_OUT_HEAD, words.held_out_rows(found)),
        TableRows(words.GROUP_HEAD, words.group_rows(found)),
        _over_prompts(found),
        [(place, value, len(trial.rounds)) for place, (trial, value) in enumerate(zip(found.trials, first, strict=True))
         if value is not None],
        found.aim.metric,
    )  # fmt: skip


def _over_prompts(found: Searched) -> list[tuple[float, tuple[float, float], tuple[float, float] | None]]:
    """Points over the median prompt of each tenth of the requests: mean TTFT in ms and share within the SLO."""
    from scenarios.search.payers import groups

    return [(each.middle, each.ttft_ms, each.within) for each in groups(*found.runs, parts=_POINTS) if each.middle]
