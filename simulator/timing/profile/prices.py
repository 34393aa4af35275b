"""Seconds of steps by a profile: a plain class, so that it can be compiled (setup.py)."""

from bisect import bisect_right

from simulator.timing.cost import StepShape
from simulator.timing.profile.arithmetic import Lines, PlainCurve, curves_us, run_on_lines
from simulator.timing.profile.decode_rows import DecodeRows
from simulator.timing.profile.joint import joint_us
from simulator.timing.profile.profile_schema import Curves, Profile
from simulator.timing.profile.verify import rows_of_group, verify_us


class StepPrices:
    """Prices of steps for `simulator.timing.profile.profile_cost.ProfileCost`, kept once they are computed.

    `sizes`: the captured batch sizes, ascending. `host_s`, `host_per_seq_s`: host time of a step and of each request.
    `samples_drafts` as in `simulator.timing.roofline_cost.Roofline`. A step with prompts and more than `launched_above`
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
