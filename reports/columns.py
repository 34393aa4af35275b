"""The columns of the verdict table: what each is called, its unit, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Summary = Mapping[str, float | int | bool | None]
Summaries = Mapping[str, Sequence[Summary]]
"""For each label the summaries of its runs, one a seed, in the same order of seeds for every label."""


@dataclass(frozen=True, slots=True)
class Column:
    """A key of a summary as the table shows it: times `scale`, in `unit`. `better`: +1 more, -1 less, 0 neither."""

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0
    better: int = 0
    flag: bool = False  # yes or no
    places: int | None = None  # decimals; None: three significant digits of the smallest value
    most: int = 3  # of these decimals


@dataclass(frozen=True, slots=True)
class Block:
    """Columns that answer one question."""

    title: str
    columns: tuple[Column, ...]


BLOCKS: tuple[Block, ...] = (
    Block(
        "What the clients got",
        (
            Column("completed", "completed", "requests", better=1, most=1),
            Column("rejected", "rejected", "requests", better=-1, most=1),
            Column("unfinished", "unfinished", "requests", better=-1, most=1),
            Column("request_throughput", "throughput", "req/s", better=1),
            Column("output_throughput", "output", "tok/s", better=1),
            Column("request_goodput", "goodput", "req/s", better=1),
            Column("slo_attainment", "within SLO", "%", scale=100.0, better=1, places=1),
            Column("usd_per_million_output_tokens", "cost", "USD/M tok", better=-1),
        ),
    ),
    Block(
        "Latency",
        (
            Column("p50_ttft_ms", "TTFT p50", "ms", better=-1),
            Column("p99_ttft_ms", "TTFT p99", "ms", better=-1),
            Column("p50_tpot_ms", "TPOT p50", "ms", better=-1),
            Column("p99_tpot_ms", "TPOT p99", "ms", better=-1),
            Column("p99_e2el_ms", "E2E p99", "ms", better=-1),
        ),
    ),
    Block(
        "Inside the engine",
        (
            Column("batch_occupancy", "batch full", "%", scale=100.0, places=1),
            Column("kv_utilization_peak", "KV peak", "%", scale=100.0, places=1),
            Column("preemptions", "preemptions", better=-1, most=1),
            Column("padding_fraction", "padding", "% tokens", scale=100.0, better=-1, places=1),
            Column("wasted_slot_fraction", "wasted slots", "%", scale=100.0, better=-1, places=1),
            Column("saturated", "saturated", flag=True),
        ),
    ),
)
COLUMNS: Mapping[str, Column] = {column.key: column for block in BLOCKS for column in block.columns}
