"""The part of accuracy.md about tables: what they hold, how well it is predicted, and models they had not seen."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from docs.writers.accuracy.composed import LeftOut, median_percent
from docs.writers.tables import table
from simulator.timing.tables import Tables

_HEAD = """## Models composed of tables

If no profile is fitted to a model, `cost: {kind: profile}` composes it from the tables of its GPU: products by width
and precision, attention by heads, KV precision and window, all-reduces by size. A run's provenance says for each part
if it was measured at that size, interpolated, extrapolated, assumed or estimated. In each test some rows are left out
and predicted from the others. Errors are in per cent:

- `thinned`: products between the rows that the tables keep; `sizes`: every second width of a product, from the widths
  beside it, so over twice the distance of any real product;
- `random`: a tenth of the cells of attention, each from its neighbours, so over twice the distance of any real step;
- `heads`: all of one pair of query and KV heads, from the others; `kv_heads`: all with the most KV heads, from those
  with fewer. More KV heads than were measured are priced in this way.

A source measures a kernel many times on the same operands. A model reads from memory those that the L2 cache holds in
the measurement. So the rows are first corrected for that (`calibration/cold.py`): decodes by the pace at which larger
batches read their keys, products by the read of their weights. A table below counts these rows (`cold`), rows that are
then still faster than the GPU can be (`impossible`), and products that take 1.3 times as long as one with more rows,
where few widths do (`disturbed`); the last two kinds are left out. Under SGLang on Blackwell and of vLLM's fp8 on B200
one product in 12 was disturbed. GB200's largest in bf16 run at half the pace of its others, as if power was short.
"""
_PARTS = """### Experts and latent attention

These have their own tables, for models that need them. The tests leave out, for experts of one precision: all sizes of
a model (`models`), each way to divide it among GPUs (`parallel`), numbers of tokens (`tokens`). For modules of latent
attention they leave out a tenth of the cells (`random`), or all of one number of heads (`heads`).
"""
_MODELS = """### A model left out

Each fitted profile is compared with the tables of the same GPU and software without that model: its pairs of heads and
the widths of its products are taken out (except the outermost), and it is composed of the rest. The profiles of RTX PRO
6000 come from another source and an older vLLM, so the errors there include that difference. The steps are decodes
alone (1 to 256 of 128 to 16,000 tokens), a chunk of a prompt alone (64 to 8,192 tokens, fresh or after 2,048), and that
chunk beside 32 decodes; kernels alone, without the host.
"""


_BESIDE = """### Decodes beside prompts, a card left out

If prompts and decodes were measured separately, a step with both is their sum. On GPUs without FlashAttention 3 decodes
take (query heads / KV heads)^power times as long beside prompts as alone (`simulator/timing/tables/decodes_beside.py`).
This form was found on the cards where both were measured together; here each is predicted with the power of the other,
for attention alone. It is applied to the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache. FlashInfer
(B200 to GB300, and an fp8 cache on those) has a kernel for each, so their times add up.
"""


_UNEVEN = """### Unequal contexts, a card left out

A batch of unequal contexts takes longer than one of equal contexts with the same sum: its longest contexts are still
read when the others have ended. If no such batch was measured, the time is estimated from the way in which
FlashAttention 2 assigns blocks of threads to multiprocessors (`simulator/timing/tables/estimated_skew.py`). The
estimate has two numbers: the pace of a block that reads alone, and the weight of a late end beside prompts. The table
predicts each card's batches of two lengths with the numbers of the other card, attention alone; `none` prices them as
equal. The estimate is applied to the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache. FlashAttention
3 (H100, H200) splits contexts with more than 1.1 times a multiprocessor's share, so nothing is added there; no unequal
batch was measured on these GPUs to test that.
"""


_CLOCKS = """### Clocks

A profile has the clock at which its GPU ran, and a server may run at another. The table shows two things for
LLMServingSim's tables. The first is the highest rate of a product of matrices, as a share of the datasheet's peak (the
rate at the rated boost clock). The second is how much longer the same steps took when they were timed again, later in
the same campaign: decodes alone of many keys, which read memory, and steps with prompts, which compute.

Only the RTX 4090 reaches the peak (no other comes near), and only its clock changed: steps that compute took longer the
second time, steps that read did not. Its rated boost clock is 2,520 MHz. A server whose card runs at 2.7 GHz computes
7 % faster than these tables, but reads memory no faster. Steps with prompts would then be predicted 7 % too slow, and
steps of decodes too slow for the part that memory does not bound. The tables do not say which clock a server has. No
other kernel could change a step with prompts as much, because products are most of its time.
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
    head = ("profile", "highest rate (% of the peak)", "decodes, again (%)", "with prompts, again (%)")
    rows = (
        (f"`{each.name}`", f"{100 * each.rate:.1f}", f"{100 * each.read:+.1f}", f"{100 * each.computed:+.1f}")
        for each in clocks
    )
    return "\n".join([_CLOCKS, *table(head, rows)])


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
    head = ("profile", "decodes", "rows", "number of the other card", "mean", "bias", "mean, none", "bias, none")
    rows = [
        (f"`{each.name}`", each.kind, each.rows, f"{each.number:.2f}", f"{100 * each.mean:.1f}",
         f"{100 * each.bias:+.1f}", f"{100 * each.plain_mean:.1f}", f"{100 * each.plain_bias:+.1f}")
        for each in held
    ]  # fmt: skip
    return "\n".join([_UNEVEN, *table(head, rows, range(2, len(head)))])


def beside_section(held: Sequence[HeldOutErrors]) -> str:
    """Mixed steps by the power of other cards, as Markdown; '' for none."""
    if not held:
        return ""
    head = ("profile", "steps", "power of the other card", "median", "bias", "median, power 0", "bias, power 0")
    rows = [
        (f"`{each.name}`", each.steps, each.power, f"{100 * each.median:.1f}", f"{100 * each.bias:+.1f}",
         f"{100 * each.plain_median:.1f}", f"{100 * each.plain_bias:+.1f}")
        for each in held
    ]  # fmt: skip
    return "\n".join([_BESIDE, *table(head, rows)])


def tables_section(tables: Sequence[Tables], models: Sequence[LeftOut]) -> str:
    """The section, as Markdown; '' where there are no tables."""
    if not tables:
        return ""
    lines = [_HEAD, *_errors([each.document for each in tables]), *_counts(tables)]
    for each in tables:
        for what, why in each.document.get("left_out", {}).items():
            lines.append(f"\nNot in `{each.name}`: {what}; {why}.")
    if models:
        head = ("profile", "tables", "steps", "number", "median", "p95", "bias")
        lines += ["", _MODELS, *table(head, [row for model in models for row in _rows(model)], range(3, len(head)))]
    return "\n".join(lines)


def parts_section(documents: Sequence[Mapping[str, Any]]) -> str:
    """The section on tables of experts and latent attention, by their JSON; '' where there are none."""
    return "\n".join([_PARTS, *_errors(documents)]) if documents else ""


def _errors(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The errors that tables state of themselves, as a table."""
    rows = []
    for each in documents:
        head = f"`{each['name']}`", each["software"]
        for kind, regimes in each.get("errors", {}).items():
            for regime, of in regimes.items():
                figures = [f"{of[name]:.1f}" for name in ("mape", "median", "p95", "bias")]
                rows.append((*head, kind, regime, of["rows"], *figures))
                head = "", ""
    columns = ("tables", "software", "kernel", "left out", "rows", "mean", "median", "p95", "bias")
    return list(table(columns, rows, range(4, len(columns))))


_COUNTS = {"cold": "cold", "rejected": "impossible", "disturbed": "disturbed"}


def _counts(tables: Sequence[Tables]) -> list[str]:
    """The rows that were changed or left out, in per cent of those of their kind."""
    lines = []
    for each in tables:
        head, held = f"`{each.name}`", {name: each.document.get(name, {}) for name in _COUNTS}
        for kind, (_, rows) in held["rejected"].items():
            shares = [100.0 * of[kind][0] / of[kind][1] if kind in of else 0.0 for of in held.values()]
            if any(shares):
                lines.append((head, kind, rows, *(f"{share:.1f}" for share in shares)))
                head = ""
    columns = ("tables", "kind", "rows", *(f"{word} (%)" for word in _COUNTS.values()))
    return ["", *table(columns, lines, range(2, len(columns)))]


def _rows(model: LeftOut) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    head = f"`{model.profile}`", f"`{model.tables}`"
    for kind, errors in model.errors.items():
        percent = 100.0 * np.asarray(errors)
        far = np.percentile(np.abs(percent), 95)
        shown = f"{median_percent(errors):.1f}", f"{far:.1f}", f"{percent.mean():+.1f}"
        rows.append((*head, kind, len(errors), *shown))
        head = "", ""
    return rows
