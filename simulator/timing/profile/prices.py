"""Seconds of steps by a profile: `StepPrices`, a plain class that is compiled, and attention by kind of step."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import inf

import numpy as np

from simulator.timing.arithmetic import (
    TILE,
    Lines,
    PlainCurve,
    curves_us,
    decode_counts,
    prompt_counts,
    run_on_lines,
    windowed_pairs,
)
from simulator.timing.cost import StepShape
from simulator.timing.profile.kernels import Attention, DecodeTable, JointTable, PrefillTable
from simulator.timing.profile.profile_schema import Curves, Profile
from simulator.timing.profile.surface import Array


class StepPrices:
    """Prices of steps for `simulator.timing.profile.profile_cost.ProfileCost`, kept once they are computed.

    `sizes`: the captured batch sizes, ascending. `host_s`, `host_per_seq_s`: host time of a step and of each request.
    `samples_drafts` as in `simulator.timing.formula_cost.Roofline`. A step with prompts and more than `launched_above`
    tokens takes `launch_s` at least. A step of prompts alone takes `prompt_times` as long, its host included; one with
    decodes in proportion to the tokens of prompts.
    """

    def __init__(
        self,
        profile: Profile,
        sizes: list[int],
        host_s: float,
        host_per_seq_s: float,
        *,
        skew: bool,
        all_reduce: bool,
        samples_drafts: bool = True,
        launch_s: float = 0.0,
        launched_above: int = 0,
        prompt_times: float = 1.0,
    ) -> None:
        self._sizes = sizes
        self._host_s = host_s
        self.host_per_seq_s = host_per_seq_s
        self._layers = profile.layers
        self._attention = profile.attention
        self._group = rows_of_group(profile)
        self._samples_drafts = samples_drafts
        self._launch_s = launch_s
        self._launched_above = launched_above
        self._prompts_add = prompt_times - 1.0
        self._skew = profile.skew.counted if skew and profile.skew is not None else None
        self._experts = profile.experts
        self._all_reduce = profile.all_reduce if all_reduce else None
        self._layer_curves = _plain(profile.layer_curves)
        self._step_curves = _plain(profile.step_curves)
        self._row_curves = _plain(profile.row_curves)
        self._decodes = DecodeRows(profile.attention.decode, profile.layers)
        self._rows: dict[int, tuple[float, Lines]] = {}  # steps of decodes alone, by their number
        self._tokens_s: dict[int, float] = {}
        self._sampled_s: dict[int, float] = {}

    def step_s(self, shape: StepShape) -> float:
        seqs, context, prefill_seqs, prefill_tokens = shape[:4]
        drafts = shape.draft_tokens
        if drafts:
            attention_us = verify_us(self._attention, shape, self._group)
        elif not prefill_tokens:
            return self.decode_run_s(shape, 1)[0] if seqs else 0.0
        else:
            attention_us = joint_us(self._attention, shape)
        if self._skew is not None:
            attention_us += self._skew.us(seqs, context, shape.decode_longest, shape.decode_squares, False)
        tokens = seqs + prefill_tokens + drafts
        fixed_s = self._tokens_s.get(tokens) or self.of_tokens_s(tokens)
        if drafts and self._samples_drafts:  # each draft has a row of logits, and the host has work for each request
            fixed_s += self.of_sampled_s(seqs + prefill_seqs + drafts) - self.host_per_seq_s * drafts
        else:
            rows = seqs + prefill_seqs
            fixed_s += self._sampled_s.get(rows) or self.of_sampled_s(rows)
        seconds = fixed_s + self._layers * attention_us * 1e-6
        if self._prompts_add and prefill_tokens:
            seconds *= 1.0 + self._prompts_add * prefill_tokens / tokens
        if seconds < self._launch_s and prefill_tokens and tokens > self._launched_above:
            return self._launch_s
        return seconds

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        seqs, context = shape[:2]
        row = self._rows.get(seqs)
        if row is None:
            row = self._rows[seqs] = (self.of_tokens_s(seqs) + self.of_sampled_s(seqs), self._decodes.lines(seqs))
        fixed_s, lines = row
        if self._skew is not None:  # the same in every step of the run
            skew_us = self._skew.us(seqs, context, shape.decode_longest, shape.decode_squares, True)
            fixed_s += self._layers * skew_us * 1e-6
        return run_on_lines(lines, fixed_s, context, seqs, repeat)

    def padded(self, tokens: int) -> int:
        """The tokens that are computed for `tokens`: the next size for which a graph was captured, if there is one."""
        sizes = self._sizes
        return sizes[bisect_right(sizes, tokens - 1)] if sizes and tokens <= sizes[-1] else tokens

    def of_tokens_s(self, tokens: int) -> float:
        """Seconds of all that depends on the number of tokens alone, the host's for a step among them."""
        seconds = self._tokens_s.get(tokens)
        if seconds is None:
            padded = self.padded(tokens)
            seconds = self._work_out(tokens) if padded == tokens else self.of_tokens_s(padded)
            self._tokens_s[tokens] = seconds
        return seconds

    def _work_out(self, tokens: int) -> float:
        layers = self._layers
        us = curves_us(self._layer_curves, layers, tokens) + curves_us(self._step_curves, 1.0, tokens)
        if self._experts is not None:
            us += layers * self._experts.us(tokens)
        if self._all_reduce is not None:
            us += self._all_reduce.at(tokens)
        return us * 1e-6 + self._host_s

    def of_sampled_s(self, rows: int) -> float:
        """Seconds of head and sampler for so many rows, and what the host does for each."""
        seconds = self._sampled_s.get(rows)
        if seconds is None:
            seconds = curves_us(self._row_curves, 1.0, rows) * 1e-6 + self.host_per_seq_s * rows
            self._sampled_s[rows] = seconds
        return seconds


def _plain(curves: Curves) -> list[PlainCurve]:
    return [curve.plain() for curve in curves.values()]


# Attention in a step with prompt chunks.


def joint_us(attention: Attention, shape: StepShape) -> float:
    """Microseconds of a layer's attention in a step with prompt chunks, equal decode contexts assumed."""
    prompt = attention.prompt
    return _apart_us(attention, prompt, shape) if isinstance(prompt, PrefillTable) else _together_us(prompt, shape)


def _apart_us(attention: Attention, prompt: PrefillTable, shape: StepShape) -> float:
    """Where prompts and decodes were measured apart."""
    seqs, decode_context, chunks, tokens, context, all_pairs, _, _, longest = shape[:9]
    pairs = float(all_pairs)
    if prompt.windowed:
        pairs -= prompt.windowed * max(0.0, pairs - windowed_pairs(chunks, tokens, pairs, prompt.window))
    if prompt.cached_pairs:
        pairs += prompt.cached_pairs * max(0, context - tokens)
    us = prompt.lookup.us_of_count(chunks, tokens / chunks, prompt_counts(chunks, tokens, pairs, longest))
    if not seqs:
        return us
    mean = decode_context / seqs
    decodes_us = attention.decode.lookup.us_of_count(seqs, mean, decode_counts(seqs, mean)) - attention.launch_us
    return us + attention.beside * decodes_us if decodes_us > 0.0 else us


def _together_us(prompt: JointTable, shape: StepShape) -> float:
    """Where they were measured in one kernel."""
    seqs, decode_context, chunks, tokens, _, pairs, _, _, longest = shape[:9]
    mean = decode_context / seqs if seqs else 0.0
    cached = max(0.0, (pairs - 0.5 * tokens * (tokens + 1)) / tokens)
    counts = prompt_counts(chunks, tokens, pairs, longest, seqs, mean, prompt.knee_keys)
    return prompt.lookup.us((tokens, cached, seqs, mean), counts)


# Attention of a step that verifies drafts: several queries of a request read its keys in one kernel.
#
# The kernel is that of steps with prompt chunks, whatever it computes beside: a batch with more than one query a
# sequence does not go to the kernel for decodes. Where both were measured in one kernel, a request with its drafts
# is looked up as a chunk beside the other decodes; where they were measured apart, decodes cost as much as they do
# beside prompts (`simulator.timing.tables.attention`). The queries of a KV head's group fill a tile of `TILE` rows,
# which reads the keys once and is computed whole: only more tiles take longer. Latent attention has one KV head for
# all.


def rows_of_group(profile: Profile) -> int:
    """Query heads that share a KV head on a GPU; 1 where the profile does not say."""
    dimensions = profile.document.get("dimensions") or {}
    heads = int(dimensions.get("heads", 1)) // profile.tensor_parallel
    kv_heads = 1 if dimensions.get("kv_lora_rank") else int(dimensions.get("kv_heads", 1)) // profile.tensor_parallel
    return max(heads, 1) // max(kv_heads, 1)


def verify_us(attention: Attention, shape: StepShape, group: int) -> float:
    """Microseconds of a layer's attention in a step whose decodes verify drafts, equal contexts assumed."""
    seqs, mean = shape.decode_seqs, shape.decode_context / shape.decode_seqs
    queries = 1.0 + shape.draft_tokens / seqs
    launch_us = attention.launch_us
    decodes_us = max(0.0, attention.beside * (attention.decode.us(seqs, mean) - launch_us))
    if shape.prefill_tokens:
        us = joint_us(attention, shape)
    elif isinstance(attention.prompt, PrefillTable):
        us = launch_us + decodes_us
    else:
        us = joint_us(attention, _as_chunk(shape, queries, mean))
    return us + decodes_us * (_tiles(group * queries) / _tiles(group) - 1.0)


def _as_chunk(shape: StepShape, queries: float, mean: float) -> StepShape:
    """The step with one of its requests as a chunk behind the rest of its context."""
    tokens, context = round(queries), round(mean)
    pairs = tokens * (context - tokens) + tokens * (tokens + 1) // 2
    return StepShape(
        shape.decode_seqs - 1, shape.decode_context - context, 1, tokens, context, pairs, prefill_longest=context
    )


def _tiles(rows: float) -> int:
    return -(-round(rows) // TILE)


# Attention of steps of decodes alone, as straight lines over their contexts: a row for each number of decodes.

KNOTS_PER_OCTAVE = 8
LONGEST_KNOT = 2.0**21  # a row has knots up to this mean context; beyond, the last line goes on
ROWS_TOGETHER = 64  # rows that are tabulated at once: 64 take four times as long as one


class DecodeRows:
    """The rows of a model's layers, worked out as they are asked for; straight between knots that are close enough."""

    def __init__(self, table: DecodeTable, layers: int) -> None:
        octaves = np.log2(LONGEST_KNOT)
        knots = np.unique(np.round(2.0 ** np.linspace(0.0, octaves, int(octaves * KNOTS_PER_OCTAVE) + 1)))
        self._table = table
        self._layers = layers
        self._knots: Array = np.union1d(knots, np.asarray(table.surface.axes[1].values)[1:])
        self._ends: Array = np.append(self._knots[1:-1], inf)
        self._together: dict[int, tuple[Array, Array]] = {}

    def lines(self, seqs: int) -> Lines:
        block, place = divmod(seqs - 1, ROWS_TOGETHER)
        found = self._together.get(block)
        if found is None:
            found = self._together[block] = self._tabulate(block * ROWS_TOGETHER + 1)
        first_s, slope_s = found
        return _flat(self._ends * seqs), _flat(first_s[place]), _flat(slope_s[place])

    def _tabulate(self, least: int) -> tuple[Array, Array]:
        """First seconds and slopes of the rows from `least` decodes on."""
        knots, seqs = self._knots, np.arange(least, least + ROWS_TOGETHER, dtype=np.float64)[:, np.newaxis]
        seconds = self._layers * 1e-6 * self._table.us_many(seqs, knots)
        slope_s = np.diff(seconds) / np.diff(knots) / seqs  # for a token of context
        return seconds[:, :-1] - slope_s * knots[:-1] * seqs, slope_s


def _flat(row: Array) -> array[float]:
    return array("d", row.tobytes())
