"""The facts of a trace as plain text, for a person."""

from __future__ import annotations

from scenarios.traces.facts.lengths import PERCENTS, LengthFacts
from scenarios.traces.facts.prefix import PrefixFacts
from scenarios.traces.inspect import TraceFacts
from simulator.percent import percent


def facts_table(facts: TraceFacts) -> str:
    """The facts as plain text, for a person."""
    skipped = sum(number for _, number in facts.skipped)
    load = facts.arrivals
    lines = [
        f"{facts.file}: {facts.format}, {facts.requests:,} requests out of {facts.rows:,} rows",
        *(f"  {note}" for note in facts.notes[1:]),
        "",
        *_pairs(
            ("duration", f"{load.duration_s:,.1f} s"),
            ("rate", f"{_number(load.rate, 3)} requests/s"),
            ("busiest minute", f"{load.peak_minute:,} requests"),
            ("inter-arrival CV", f"{_number(load.interarrival_cv, 3)} (Poisson: 1)"),
            (
                "dispersion of counts",
                f"{_number(load.idc_1s, 2)} in 1 s, {_number(load.idc_10s, 2)} in 10 s, "
                f"{_number(load.idc_60s, 2)} in 60 s (Poisson: 1)",
            ),
            ("longest gap", f"{load.max_gap_s:,.2f} s"),
            ("gaps of zero", percent(load.zero_gap_share, 1)),
            ("rows skipped", f"{skipped:,}"),
        ),
        "",
        *_lengths_table(facts.input, facts.output),
        "",
        *_pairs(
            ("input : output tokens", f"{facts.input_output_ratio:,.2f}"),
            ("largest request", f"{facts.max_total_tokens:,} tokens"),
            ("correlation in/out", f"{_number(facts.pearson, 3)} Pearson, {_number(facts.spearman, 3)} Spearman"),
        ),
    ]
    if facts.prefix is not None:
        lines += ["", *_prefix_lines(facts.prefix)]
    return "\n".join(lines) + "\n"


def _lengths_table(inputs: LengthFacts, outputs: LengthFacts) -> list[str]:
    rows = [("tokens", "input", "output"), ("min", f"{inputs.min:,}", f"{outputs.min:,}")]
    for rank, a, b in zip(PERCENTS, inputs.percentiles, outputs.percentiles, strict=True):
        rows.append((f"p{rank:g}", f"{a:,.1f}", f"{b:,.1f}"))
    rows += [
        ("max", f"{inputs.max:,}", f"{outputs.max:,}"),
        ("mean", f"{inputs.mean:,.1f}", f"{outputs.mean:,.1f}"),
        ("CV", f"{inputs.cv:.3f}", f"{outputs.cv:.3f}"),
        ("tail index (Hill, top 5 %)", _number(inputs.hill_alpha, 2), _number(outputs.hill_alpha, 2)),
        ("tokens in the top 5 % of rows", percent(inputs.tail_token_share, 1), percent(outputs.tail_token_share, 1)),
    ]
    return [f"  {name:<30}{a:>14}{b:>14}" for name, a, b in rows]


def _prefix_lines(prefix: PrefixFacts) -> list[str]:
    low, middle, high = prefix.hit_share_quartiles
    return _pairs(
        ("prompts with block hashes", f"{prefix.requests:,}"),
        ("blocks", f"{prefix.blocks:,}, {prefix.distinct_blocks:,} of them distinct"),
        ("distinct used again", percent(prefix.distinct_reused_share, 1)),
        ("ideal hit ratio, blocks", percent(prefix.block_hit_ratio, 1)),
        ("ideal hit ratio, tokens", percent(prefix.token_hit_ratio, 1)),
        ("hit share per request", f"p25 {low:.2f}, p50 {middle:.2f}, p75 {high:.2f}"),
        ("requests without a hit", f"{prefix.requests_without_hit:,}"),
        ("most used block", f"in {prefix.top_block_requests:,} requests"),
    )


def _pairs(*pairs: tuple[str, str]) -> list[str]:
    return [f"  {name:<26}{value}" for name, value in pairs]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
