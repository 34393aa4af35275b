"""Which steps of its replica gave a request its tokens.

Records keep the gaps between tokens pooled, without the requests that had them. But a decoding request gets a token
from every step of its replica that decodes at all, so that the first and the last token of a request and the steps
between them say when its tokens came.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.metrics.usage import step_starts
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """The steps of one replica, in order."""

    start_s: Floats
    end_s: Floats
    decodes: Bools  # whether it gives a token to every decoding request
    pauses: bool  # whether a request ever held a slot without computing
    overlaps: bool  # whether preemptions were planned while the step before ran, which still gave the victims a token

    def of_tokens(self, records: Records, served: Ints) -> tuple[Ints, Ints]:
        """For each of these requests the steps of its first and of its last token."""
        requests, delay_s = records.requests, records.front_end_of(served)
        first = _nearest(self.end_s, requests.first_token_s[served] - delay_s)
        return first, _nearest(self.end_s, requests.last_token_s[served] - delay_s)


def decode_steps(records: Records, which: Bools) -> Iterator[tuple[DecodeSteps, Ints]]:
    """Each replica's steps, with the rows of those requests among `which` that it served; without any, left out."""
    requests, rows, requeues = records.requests, records.rows, records.requeues
    replica_of_step = np.repeat(rows.replica, rows.repeat)
    decodes = np.repeat(rows.decoding > 0, rows.repeat)
    pauses = rows.running > rows.decoding + rows.prefilling + rows.held
    starts = step_starts(records)
    for replica in range(records.replicas):
        here = replica_of_step == replica
        served = np.flatnonzero(which & (requests.replica == replica))
        if len(served):
            own = rows.replica == replica
            left_s = requeues.from_s[requests.replica[requeues.row] == replica]
            overlaps = not np.isin(left_s, rows.start_s[own & (rows.preempted > 0)]).all()
            if rows.preempted[own].sum() < len(left_s):  # some left in steps that computed nothing and have no row
                overlaps = False
            ends = records.step_end_s[here]
            yield DecodeSteps(starts[here], ends, decodes[here], bool(pauses[own].any()), overlaps), served


def present(records: Records, steps: DecodeSteps, row: int, first: int, last: int) -> tuple[Floats, Ints, Ints]:
    """The steps between two tokens of a request during which it was not preempted.

    Returns their ends, and as indices into these the steps that decode, and the first steps after each preemption
    that threw its KV away.
    """
    requeues = records.requeues
    mine = np.flatnonzero((requeues.row == row) & (requeues.to_s > steps.start_s[first]))
    start_s = steps.start_s[first + 1 : last + 1]
    here = np.ones(len(start_s), dtype=np.bool_)
    back = []
    for entry in mine.tolist():
        left = int(np.searchsorted(start_s, requeues.from_s[entry], "right" if steps.overlaps else "left"))
        came = int(np.searchsorted(start_s, requeues.to_s[entry]))
        here[left:came] = False
        if not requeues.swapped[entry] and came < len(here):
            back.append(came)
    place = np.maximum(np.cumsum(here) - 1, 0)
    ends = steps.end_s[first + 1 : last + 1][here]
    return ends, np.flatnonzero(steps.decodes[first + 1 : last + 1][here]), place[np.array(back, dtype=np.int64)]


def _nearest(rising: Floats, wanted: Floats) -> Ints:
    """Index of the value nearest to each wanted one."""
    middles = (rising[1:] + rising[:-1]) / 2
    return np.asarray(np.searchsorted(middles, wanted), dtype=np.int64)
