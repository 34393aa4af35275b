"""Low occupancy: slots run out, or the policy admits nobody, while memory is free and a larger batch would pay."""

import numpy as np

from scenarios.assembly.engines import is_default
from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, count
from scenarios.diagnosis.rules.memory import MOSTLY_FIXED, ROOM, gain_of
from simulator.metrics.metric import percent
from simulator.policies import DEFAULT_POLICY
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    rows = evidence.records.rows
    bound = (evidence.no_slot | evidence.held_back) & (rows.running > 0)
    if not bound.any():
        return None
    fixed = evidence.fixed_share(bound)
    room = evidence.spare_memory(bound)
    if fixed < MOSTLY_FIXED or room < ROOM:
        return None
    gain = gain_of(fixed, room)
    waited = evidence.queued_s(evidence.no_slot) + evidence.queued_s(evidence.held_back)
    waited = np.minimum(waited + evidence.resting_s(), evidence.late.queued_s)
    running = evidence.seen(rows.running, bound)
    slots = float(evidence.prices.slots.mean())
    full = float(evidence.seen_s[evidence.no_slot].sum()) >= float(evidence.seen_s[evidence.held_back].sum())
    why = "every slot taken" if full else "slots, memory and tokens free, and no request admitted"
    words = (
        f"requests wait with {why}, {count(running)} of {count(slots)} slots running "
        f"and {percent(1 - 1 / room)} of the KV blocks free; {percent(fixed)} of a step is fixed cost: "
        f"a batch that fills the memory would serve {count(gain)}x"
    )
    numbers = {
        "running_while_requests_wait": running,
        "slots": slots,
        "free_kv": 1 - 1 / room,
        "step_time_of_a_batch_of_one": fixed,
        "gain_of_a_batch_that_fills_the_memory": gain,
        "every_slot_taken": full,
    }
    return Claim(words, numbers, _remedies(evidence, room, full), waited_s=waited * evidence.relieved(gain))


def _remedies(evidence: Evidence, room: float, full: bool) -> list[Remedy]:
    engine = evidence.scenario.engine
    found = []
    if engine.parameter("max_num_active_seqs") is not None:
        found.append(Remedy({"engine.max_num_active_seqs": None}, "let all slots run"))
    elif full:
        found.append(_more_slots(evidence, room))
    if float(engine.parameter("watermark") or 0.0) > 0.01:
        found.append(Remedy({"engine.watermark": 0.0}, "no blocks kept free at admission"))
    if not full and not is_default(evidence.scenario):
        found.append(Remedy({"engine.policy": DEFAULT_POLICY}, "admit at every step what fits"))
    return found


def _more_slots(evidence: Evidence, room: float) -> Remedy:
    slots = int(evidence.scenario.engine.parameter("max_num_seqs", 256) or 256)
    more = min(int(slots * min(max(room, 2.0), 1024.0)), max(256, 2 * slots))
    return Remedy({"engine.max_num_seqs": more}, "as many slots as the memory has room for, 256 or twice")


def free_slots(evidence: Evidence) -> list[Remedy]:
    """Propose more slots, where late requests waited mostly for one and memory is free: it costs nothing to try."""
    no_slot = evidence.no_slot
    room = evidence.spare_memory(no_slot)
    mostly = float(evidence.seen_s[no_slot].sum()) >= 0.5 * float(evidence.seen_s.sum())
    return [_more_slots(evidence, room)] if mostly and room >= ROOM and no_slot.any() else []


RULE = Rule(
    "admission-bound",
    "low occupancy: admission-bound",
    "Requests wait for a slot, or for the policy to admit them, while memory is free and a larger batch would pay.",
    "The seconds that late requests waited with every slot taken, or with slots, memory and tokens free. Two "
    "conditions hold: the running requests would fit into the KV cache twice, and a batch of one would cost at least "
    "half of the time of those steps. In an overload only the requests count that a batch filling the memory would "
    "have served.",
    "more slots (`max_num_seqs`), a smaller `watermark`, a policy that admits at every step",
    _find,
)
