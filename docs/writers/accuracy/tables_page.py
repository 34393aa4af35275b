"""The part of accuracy.md about tables: what they hold, how well it is predicted, and models they had not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from docs.writers.accuracy.composed import LeftOut, median_percent
from simulator.timing.tables import Tables

_HEAD = """## Models composed of tables

Where no profile is fitted to a model, `cost: {kind: profile}` composes it from the tables of its GPU: products by
width and precision, attention by heads, KV precision and window, all-reduces by size. A run's provenance says of each
part whether it was measured at that size, interpolated, extrapolated, assumed or estimated. Errors are in per cent:

- `thinned`: products between the rows that the tables keep; `sizes`: every other width of a product, from those beside
  it, so from twice as far as any product is;
- `random`: a tenth of the cells of attention, each from its neighbours, so from twice as far as any step is;
- `heads`: all of one pair of query and KV heads, from the others; `kv_heads`: all with the most KV heads, from those
  with fewer, which is how more KV heads than were measured are priced.

A source measures a kernel again and again on the same operands. What the L2 cache holds of them is read from memory in
a model, and the rows are brought there before anything else (`calibration/cold.py`): decodes by the pace at which
larger batches read their keys, products by the way of their weights. A table below counts these rows (`cold`), those
that even so are faster than the GPU can be (`impossible`), and those that take 1.4 times as long as rows before and
after them (`disturbed`); the latter two are left out. Two sources show more trouble than that: of B200's fp8 products
one in 25 was disturbed, and GB200's largest in bf16 run at half the pace of its others, as if short of power.
"""
_PARTS = """### Experts and latent attention

Tables of their own, read where a model has them. Left out were, of experts of one precision: all sizes of a model
(`models`), each way of dividing it among GPUs (`parallel`), numbers of tokens (`tokens`); of modules of latent
attention: a tenth of the cells (`random`), all of one number of heads (`heads`).
"""
_MODELS = """### A model left out

Each fitted profile of the same GPU and software against the tables without that model: its pairs of heads and the
widths of its products are taken out (but for the outermost), and it is composed of what is left. The profiles of RTX
PRO 6000 are of another source and an older vLLM, so an error there is also what these differ by. Steps of decodes
alone (1 to 256 of 128 to 16,000 tokens), of a chunk of a prompt alone (64 to 8,192 tokens, fresh or behind 2,048), and
of that chunk beside 32 decodes; kernels alone, without the host.
"""


_BESIDE = """### Decodes beside prompts, a card left out

Where prompts and decodes were measured apart, a step with both is their sum. On GPUs without FlashAttention 3 decodes
take (query heads / KV heads)^power times as long beside prompts as alone (`simulator/timing/tables/decodes_beside.py`):
the form was found on the cards that measured both together, each predicted with the power of the other, for attention
alone. It is applied to the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache. FlashInfer (B200 to
GB300, and an fp8 cache on those) has a kernel for each, and they add up.
"""


_UNEVEN = """### Unequal contexts, a card left out

A batch of unequal contexts takes longer than one of equal contexts with the same sum: its longest are still read when
the rest has ended. Where no such batch was measured, FlashAttention 2 lists blocks of threads over the multiprocessors
(`simulator/timing/tables/estimated_skew.py`), with two numbers: how fast a block reads by itself, and what a late end
counts beside prompts. Each card's batches of two lengths with the numbers of the other card, attention alone; `none`
prices them as equal. It is applied to the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache.
FlashAttention 3 (H100, H200) splits whatever has more than 1.1 times a multiprocessor's share, so nothing is added
there; no unequal batch was measured on them that could say more.
"""


_CLOCKS = """### Clocks

A profile has the clock that its GPU ran at, and a server may run at another. Of LLMServingSim's tables: the highest
rate that a product of matrices reaches, of the datasheet's peak, which is the rate at the rated boost clock; and by how
much the same steps took longer when they were timed again, later in the same campaign: decodes alone of many keys,
which read, and steps with prompts, which compute.

The RTX 4090 is the one that reaches the peak (no other comes near), and the one whose clock moved: what computes took
longer the second time, what reads did not. Its rated boost clock is 2,520 MHz. A server whose card runs at 2.7 GHz
computes 7 % faster than these tables and reads memory no faster: steps with prompts would be predicted that much too
slow, and steps of decodes by the part of them that memory does not bound. Nothing in the tables says which clock a
server has, and no other kernel could move a step with prompts as far: its products are most of it.
"""


class ClockOf(Protocol):
    """Clock of a profile's source (`docs.writers.accuracy.clocks.Clock`); fractions."""

    @property
    def name(self) -> str: ...
    @property
    def rate(self) -> float: ...
    @property
    def read(self) -> float: ...
    @property
    def computed(self) -> float: ...


def clocks_section(clocks: Sequence[ClockOf]) -> str:
    """The clocks of the sources of profiles, as Markdown; '' for none."""
    if not clocks:
        return ""
    lines = [
        _CLOCKS,
        "| profile | highest rate (% of the peak) | decodes, again (%) | with prompts, again (%) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for each in clocks:
        again = f"{100 * each.read:+.1f} | {100 * each.computed:+.1f}"
        lines.append(f"| `{each.name}` | {100 * each.rate:.1f} | {again} |")
    return "\n".join(lines)


class HeldOutErrors(Protocol):
    """Mixed steps of a profile, predicted from other cards (`docs.writers.accuracy.beside.Held`); fractions."""

    @property
    def name(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def power(self) -> float: ...
    @property
    def median(self) -> float: ...
    @property
    def bias(self) -> float: ...
    @property
    def plain_median(self) -> float: ...
    @property
    def plain_bias(self) -> float: ...


class HeldUneven(Protocol):
    """Unequal batches of a profile, predicted from other cards (`docs.writers.accuracy.uneven.Held`); fractions."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def number(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def bias(self) -> float: ...
    @property
    def plain_mean(self) -> float: ...
    @property
    def plain_bias(self) -> float: ...


def uneven_section(held: Sequence[HeldUneven]) -> str:
    """Unequal batches by the numbers of other cards, as Markdown; '' for none."""
    if not held:
        return ""
    lines = [
        _UNEVEN,
        "| profile | decodes | rows | number of the other card | mean | bias | mean, none | bias, none |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in held:
        figures = f"{100 * each.mean:.1f} | {100 * each.bias:+.1f} | {100 * each.plain_mean:.1f}"
        words = f"`{each.name}` | {each.kind} | {each.rows} | {each.number:.2f}"
        lines.append(f"| {words} | {figures} | {100 * each.plain_bias:+.1f} |")
    return "\n".join(lines)


def beside_section(held: Sequence[HeldOutErrors]) -> str:
    """Mixed steps by the power of other cards, as Markdown; '' for none."""
    if not held:
        return ""
    lines = [
        _BESIDE,
        "| profile | steps | power of the other card | median | bias | median, power 0 | bias, power 0 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in held:
        figures = f"{100 * each.median:.1f} | {100 * each.bias:+.1f} | {100 * each.plain_median:.1f}"
        lines.append(f"| `{each.name}` | {each.steps} | {each.power} | {figures} | {100 * each.plain_bias:+.1f} |")
    return "\n".join(lines)


def tables_section(tables: Sequence[Tables], models: Sequence[LeftOut]) -> str:
    """The section, as Markdown; '' where there are no tables."""
    if not tables:
        return ""
    lines = [_HEAD, *_errors([each.document for each in tables]), *_counts(tables)]
    for each in tables:
        for what, why in each.document.get("left_out", {}).items():
            lines.append(f"\nNot in `{each.name}`: {what}; {why}.")
    if models:
        lines += ["", _MODELS, "| profile | tables | steps | number | median | p95 | bias |"]
        lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
        lines += [row for model in models for row in _rows(model)]
    return "\n".join(lines)


def parts_section(documents: Sequence[Mapping[str, Any]]) -> str:
    """The section on tables of experts and latent attention, by their JSON; '' where there are none."""
    return "\n".join([_PARTS, *_errors(documents)]) if documents else ""


def _errors(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The errors that tables state of themselves, as a table."""
    lines = [
        "| tables | software | kernel | left out | rows | mean | median | p95 | bias |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in documents:
        head = f"`{each['name']}` | {each['software']}"
        for kind, regimes in each.get("errors", {}).items():
            for regime, of in regimes.items():
                figures = " | ".join(f"{of[name]:.1f}" for name in ("mape", "median", "p95", "bias"))
                lines.append(f"| {head} | {kind} | {regime} | {of['rows']} | {figures} |")
                head = " | "
    return lines


_COUNTS = {"cold": "cold", "rejected": "impossible", "disturbed": "disturbed"}


def _counts(tables: Sequence[Tables]) -> list[str]:
    """The rows that were changed or left out, in per cent of those of their kind."""
    lines = [
        "",
        f"| tables | kind | rows | {' (%) | '.join(_COUNTS.values())} (%) |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for each in tables:
        head, held = f"`{each.name}`", {name: each.document.get(name, {}) for name in _COUNTS}
        for kind, (_, rows) in held["rejected"].items():
            shares = [100.0 * of[kind][0] / of[kind][1] if kind in of else 0.0 for of in held.values()]
            if any(shares):
                lines.append(f"| {head} | {kind} | {rows} | {' | '.join(f'{share:.1f}' for share in shares)} |")
                head = " "
    return lines


def _rows(model: LeftOut) -> list[str]:
    rows, head = [], f"`{model.profile}` | `{model.tables}`"
    for kind, errors in model.errors.items():
        percent = 100.0 * np.asarray(errors)
        far = np.percentile(np.abs(percent), 95)
        rows.append(
            f"| {head} | {kind} | {len(errors)} | {median_percent(errors):.1f} | {far:.1f} | {percent.mean():+.1f} |"
        )
        head = " | "
    return rows
