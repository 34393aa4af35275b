"""The part of accuracy.md about tables: what they hold, how well it is predicted, and models they had not seen."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from docs.writers.accuracy.composed import LeftOut, median_percent
from docs.writers.accuracy.data import HELD_OUT, MODELS_LEFT_OUT, ROWS_LEFT_OUT
from docs.writers.tables import about, table
from simulator.timing.tables import Tables

_HEAD = """## Models composed of tables

Without a profile fitted to a model, `cost: {kind: profile}` composes it from the tables of its GPU: products by width
and precision, attention by heads, KV precision and window, all-reduces by size. A run's provenance says for each part
whether it was measured at that size, interpolated, extrapolated, assumed or estimated. Each test leaves some rows out
and predicts them from the others. Errors are in per cent:

- `thinned`: products between the rows that the tables keep;
- `sizes`: every second width of a product, predicted from its neighbours (twice the distance of any real product);
- `random`: a tenth of the cells of attention, each from its neighbours (twice the distance of any real step);
- `heads`: all rows of one pair of query and KV heads, from the others;
- `kv_heads`: all rows with the most KV heads, from those with fewer. More KV heads than measured are priced like this.

Sources time a kernel many times on the same operands, and some of these stay in the L2 cache. A model reads them from
memory, so such rows are corrected first (`cold`; `calibration/cold.py`). Rows that are still faster than the GPU allows
(`impossible`) are left out, and so are products that take 1.3 times as long as one with more rows (`disturbed`). Under
SGLang on Blackwell, and for vLLM's fp8 on B200, one product in 12 was disturbed. GB200's largest products in bf16 run
at half the pace of its others, as if power was short.
"""
_PARTS = """### Experts and latent attention

Models with experts or latent attention need further tables. The tests leave out all sizes of a model (`models`), each
way to divide it among GPUs (`parallel`), or numbers of tokens (`tokens`) of experts in one precision; and a tenth of
the cells (`random`) or all rows of one number of heads (`heads`) of latent attention.
"""
_MODELS = """### A model left out

Each fitted profile is compared with the tables of the same GPU and software without that model: its pairs of heads and
the widths of its products are taken out (except the outermost), and the model is composed of the rest. The profiles of
RTX PRO 6000 come from another source and an older vLLM, and the errors include that difference. Steps are decodes alone
(1 to 256 of 128 to 16,000 tokens), a prompt chunk alone (64 to 8,192 tokens, fresh or after 2,048), and that chunk
beside 32 decodes; kernels only, without the host.
"""


_BESIDE = """### Decodes beside prompts, a card left out

Prompts and decodes that were measured separately are added up. On GPUs without FlashAttention 3, decodes take (query
heads / KV heads)^power times as long beside prompts (`simulator/timing/tables/attention.py`). The form was found
on the cards where both were measured together; here the power of one card predicts the other, for attention alone. It
is applied to the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache. FlashInfer (B200 to GB300, and an
fp8 cache on those) has a kernel for each, so their times add up.
"""


_UNEVEN = """### Unequal contexts, a card left out

A batch of unequal contexts takes longer than one of equal contexts with the same sum: its longest contexts are read
last and alone. Where no such batch was measured, the time is estimated from the order in which FlashAttention 2
assigns thread blocks to multiprocessors (`simulator/timing/tables/attention.py`). The estimate has two numbers:
the pace of a block that reads alone, and the weight of a late end beside prompts. Here the numbers of one card predict
the other card's batches of two lengths, for attention alone; `none` prices them as equal. The estimate is applied to
the A100 and to the tables of L40S and RTX PRO 6000 with a bf16 cache. FlashAttention 3 (H100, H200) splits long
contexts, so nothing is added there; no unequal batch was measured on these GPUs.
"""


_CLOCKS = """### Clocks

A profile has the clock at which its GPU ran; a server may run at another. For LLMServingSim's tables, the table shows
the highest rate of a product of matrices, as a share of the datasheet's peak (at the rated boost clock), and how much
longer the same steps took when they were timed again later: decodes of many keys, which read memory, and steps with
prompts, which compute.

Only the RTX 4090 reaches the peak, and only its clock changed: steps that compute took longer the second time, steps
that read did not. Its rated boost clock is 2,520 MHz. A server at 2.7 GHz computes 7 % faster than these tables and
reads memory no faster, so its steps with prompts would be predicted 7 % too slow. The tables do not record the clock.
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
    lines = [_HEAD, *summary([each.document for each in tables]), "", HELD_OUT_LINE, "", ROWS_LINE]
    if models:
        head = ("steps", "models", "best median", "worst median", "worst p95", "model")
        lines += ["", _MODELS, *table(head, _by_steps(models), range(1, 5)), "", MODELS_LINE]
    return "\n".join(lines)


def parts_section(documents: Sequence[Mapping[str, Any]]) -> str:
    """The section on tables of experts and latent attention, by their JSON; '' where there are none."""
    return "\n".join([_PARTS, *summary(documents), "", HELD_OUT_LINE]) if documents else ""


HELD_OUT_LINE = about(
    HELD_OUT, "name, software and source, kernel, what was left out, rows, and the mean, median, p95 and bias"
)
ROWS_LINE = about(
    ROWS_LEFT_OUT,
    "rows by kind, the shares that are cold, impossible and disturbed, and products that a table lacks, and why",
)
MODELS_LINE = about(MODELS_LEFT_OUT, "profile, tables, steps, number of steps, median, p95 and bias")
_FAMILIES = {"gemm": "products", "decode_attention": "decode attention", "prefill_attention": "prefill attention",
             "joint_attention": "both in one kernel", "experts": "experts", "latent": "latent attention"}  # fmt: skip


def summary(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of held-out errors by engine and kind of kernel: the range of the medians, and the worst case."""
    found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for each in documents:
        engine = str(each.get("software", "")).partition(" ")[0]
        for kernel, regimes in each.get("errors", {}).items():
            family = next((name for word, name in _FAMILIES.items() if kernel.startswith(word)), kernel)
            for regime, of in regimes.items():
                worst = f"`{each['name']}`, {kernel}, {regime}"
                middle = of.get("median", of["mape"])
                found.setdefault((engine, family), []).append((of.get("p95", of["mape"]), middle, worst))
    rows = []
    for (engine, family), tests in sorted(found.items()):
        medians = [middle for _, middle, _ in tests]
        p95, _, worst = max(tests)
        ends = (f"{figure:.1f}" for figure in (float(np.median(medians)), max(medians), p95))
        rows.append((engine, family, len(tests), *ends, worst))
    head = ("engine", "kernels", "tests", "median", "worst median", "worst p95", "where")
    return list(table(head, rows, range(2, 6)))


def _by_steps(models: Sequence[LeftOut]) -> list[tuple[object, ...]]:
    """Errors of composed models by kind of step: the range over models, and the worst one."""
    rows = []
    for kind in models[0].errors:
        medians = [median_percent(model.errors[kind]) for model in models]
        far = {float(np.percentile(100.0 * np.abs(np.asarray(model.errors[kind])), 95)): model for model in models}
        worst = max(far)
        ends = (f"{figure:.1f}" for figure in (min(medians), max(medians), worst))
        rows.append((kind, len(models), *ends, f"`{far[worst].profile}`"))
    return rows
