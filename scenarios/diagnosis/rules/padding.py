"""Padding: tokens and slots computed for nothing while requests wait."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from simulator.percent import percent
from simulator.policies import DEFAULT_POLICY, PLAIN_POLICY
from simulator.results.records import Floats

WASTE = 0.2
"""Share of the computed tokens that are padding from which on it is a finding: a GPU in five."""


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    rows = evidence.records.rows
    tokens, padded = float(np.dot(rows.repeat, rows.tokens)), float(np.dot(rows.repeat, rows.padded_tokens))
    share = padded / tokens if tokens else 0.0
    if share < WASTE:
        return None
    held = float(np.dot(rows.repeat, rows.held)) / max(float(np.dot(rows.repeat, rows.running)), 1.0)
    padding = rows.padded_tokens > 0
    lost = float(np.dot(evidence.row_s, rows.padded_tokens / np.maximum(rows.tokens, 1)))
    running_s = np.minimum(evidence.queued_s(np.ones(len(padding))), evidence.late.queued_s)
    # A request behind a batch that pads waits for its end: it could have had a padded place.
    queued = np.where(evidence.queued_s(padding) > 0, running_s, 0.0)
    words = (
        f"{percent(share)} of the computed tokens are padding, and {percent(held)} of the slots were "
        f"held by finished requests, while others waited for the batch to end"
    )
    numbers = {"padding_of_computed": share, "slots_held_by_finished": held}
    why = "let a request leave as it finishes"
    remedies = [
        Remedy({"engine.policy": DEFAULT_POLICY}, f"{why}, and another take its place at the next step"),
        Remedy({"engine.policy": PLAIN_POLICY}, f"{why}; prompts in steps of their own"),
    ]
    return Claim(
        words, numbers, remedies, waited_s=queued, slowed_s=evidence.after_first_s(padding) * share,
        lost=lost / max(evidence.replica_seconds, 1e-9),
    )  # fmt: skip


RULE = Rule(
    "padding",
    "padding waste",
    "Prompts are padded to the longest, and finished requests still compute in their slots until the batch ends.",
    f"At least {percent(WASTE)} of the computed tokens are padding. The seconds that late requests waited behind "
    "padded batches count, and that share of the GPU's time is lost.",
    f"a policy that batches by iteration (`engine.policy: {DEFAULT_POLICY}`, `{PLAIN_POLICY}`)",
    _find,
)
