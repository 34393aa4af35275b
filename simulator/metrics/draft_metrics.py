"""Metrics of speculative decoding, over the verify steps of measured requests; vLLM's `bench serve` names them so."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Metric, Value
from simulator.metrics.window import measured_window
from simulator.results.records import DraftColumns, Floats, Ints, Records

PER_POSITION = "spec_decode_per_position_acceptance_rates"
"""The entry of summary.json with a list: the share of verify steps in which at least 1, 2, ... drafts are accepted."""


def _weights(sample: Sample) -> tuple[DraftColumns, Ints] | None:
    """The counts of drafts, and the verify steps of each that are of measured requests; None where nothing drafts."""
    drafts = sample.records.drafts
    return None if drafts is None else (drafts, drafts.steps * sample.measured[drafts.row])


def num_drafts(sample: Sample) -> Value:
    """Verify steps, one for each request in each step."""
    found = _weights(sample)
    return None if found is None else int(found[1].sum())


def draft_tokens(sample: Sample) -> Value:
    """Drafts that were verified."""
    found = _weights(sample)
    return None if found is None else int(found[0].drafts @ found[1])


def accepted_tokens(sample: Sample) -> Value:
    """Drafts that were accepted."""
    found = _weights(sample)
    return None if found is None else int(found[0].accepted @ found[1])


def wasted_tokens(sample: Sample) -> Value:
    """Drafts that were verified in vain."""
    found = _weights(sample)
    return None if found is None else int((found[0].drafts - found[0].accepted) @ found[1])


def acceptance_length(sample: Sample) -> Value:
    """1 + accepted drafts of a verify step, mean."""
    found = _weights(sample)
    steps = 0 if found is None else int(found[1].sum())
    return None if found is None or not steps else 1 + float(found[0].accepted @ found[1]) / steps


def acceptance_rate(sample: Sample) -> Value:
    """Accepted drafts in per cent of all drafts."""
    found = _weights(sample)
    drafts = 0 if found is None else int(found[0].drafts @ found[1])
    return None if found is None or not drafts else 100 * float(found[0].accepted @ found[1]) / drafts


def tokens_per_step(sample: Sample) -> Value:
    """Output tokens of all requests over the steps of the engine, where something drafts."""
    steps = len(sample.records.step_end_s)
    if sample.records.drafts is None or not steps:
        return None
    return float(sample.records.requests.output_tokens.sum()) / steps


DRAFT_METRICS = (
    Metric(
        "spec_decode_acceptance_length", "acceptance length", "tokens",
        "1 + accepted drafts / verify steps", acceptance_length, better=1,
        remark="the model's own token among them, as in vLLM; cut at the end of an answer it is less", is_rare=True,
    ),
    Metric(
        "spec_decode_acceptance_rate", "accepted", "%", "accepted drafts / drafts x 100", acceptance_rate, better=1,
        is_rare=True,
    ),
    Metric(
        "spec_decode_num_drafts", "verify steps", "", "verify steps, one for each request in each step", num_drafts,
        is_rare=True,
    ),
    Metric(
        "spec_decode_draft_tokens", "drafts", "tokens", "drafts that were verified", draft_tokens,
        remark="the padding of vLLM's 1-token admissions among them", is_rare=True,
    ),
    Metric(
        "spec_decode_accepted_tokens", "accepted drafts", "tokens", "drafts that were accepted", accepted_tokens,
        is_rare=True,
    ),
    Metric(
        "spec_decode_wasted_tokens", "wasted drafts", "tokens", "drafts that were verified and rejected",
        wasted_tokens, better=-1, is_rare=True,
    ),
    Metric(
        "output_tokens_per_step", "tokens a step", "tokens", "output tokens / steps, of the whole run",
        tokens_per_step, better=1, is_rare=True,
    ),
)  # fmt: skip


def acceptance_by_position(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Mapping[str, Any]:
    """Return the entry `PER_POSITION`; nothing where no drafts were verified."""
    drafts = records.drafts
    if drafts is None:
        return {}
    steps = drafts.steps * measured_window(records, warmup_s, cooldown_s).measured[drafts.row]
    positions = range(int(drafts.drafts.max()))
    accepted: Floats = np.array([steps[drafts.accepted > place].sum() for place in positions], dtype=np.float64)
    return {PER_POSITION: (accepted / steps.sum()).tolist()} if steps.sum() else {}
