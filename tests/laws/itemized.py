"""The engine that walks through a batch request by request, without drafts: the rule that the fast one must follow."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pytest

from simulator import is_compiled
from simulator.engine.itemized import Drafter, ItemizedReplica
from simulator.engine.replica import Replica, ReplicaParts
from simulator.results.records import GapColumns, Ints, Records, RowColumns


def itemized_replica(parts: ReplicaParts) -> Replica:
    """Make the replica that counts each request by itself, and has no parts."""
    return ItemizedReplica(parts, Drafter())


@contextmanager
def one_by_one(patch: pytest.MonkeyPatch) -> Iterator[list[Replica]]:
    """Let runs inside take `itemized_replica` instead of `Replica`; yields those that they made."""
    if is_compiled():
        pytest.skip("compiled code makes the replica that it was compiled with")
    made: list[Replica] = []

    def make(parts: ReplicaParts) -> Replica:
        made.append(itemized_replica(parts))
        return made[-1]

    with patch.context() as inside:
        inside.setattr("simulator.fleet.fleet.Replica", make)
        yield made


def first_steps(records: Records) -> Ints:
    """The first step of each row, counted among the steps that compute tokens."""
    rows, works = records.rows, _works(records)
    number: Ints = np.cumsum(works) - works
    return number[rows.first_step[rows.tokens > 0]]


def _works(records: Records) -> npt.NDArray[np.bool_]:
    """Whether each step computes tokens."""
    return np.repeat(records.rows.tokens > 0, records.rows.repeat)


def comparable(records: Records, at: Ints) -> Records:
    """The same records as both engines have them: rows that begin at the steps `at`, counted as `first_steps` does.

    Equal decode steps are one row of the fast engine alone: what lies inside its rows moves to `gaps`. With
    asynchronous scheduling it alone has waits for results as rows, and knows a decode that is one too many as `held`.
    """
    works = _works(records)
    ends, first = records.step_end_s[works], first_steps(records)
    row = np.searchsorted(first, at, side="right") - 1
    if not np.array_equal(first[row], at):
        raise AssertionError("a row of one begins inside a row of the other")
    kept = np.flatnonzero(records.rows.tokens > 0)[row]
    columns = {field.name: getattr(records.rows, field.name)[kept] for field in fields(RowColumns)}
    columns |= {"first_step": at, "repeat": np.diff(at, append=len(ends)), "held": np.zeros_like(at)}
    columns |= {"end_s": ends[at + columns["repeat"] - 1], "padded_tokens": np.zeros_like(at)}
    columns["decoding"] = columns["tokens"] - columns["prefill_tokens"]
    return replace(
        records,
        rows=RowColumns(**columns),
        gaps=_all_gaps(records),
        step_end_s=ends,
        step_used_blocks=records.step_used_blocks[works],
    )


def _all_gaps(records: Records) -> GapColumns:
    """The gaps between tokens, those inside rows too, in the order of their ends."""
    ends, rows, gaps = records.step_end_s, records.rows, records.gaps
    inside = np.delete(np.arange(len(ends)), rows.first_step)
    decoding = np.repeat(rows.decoding, rows.repeat)[inside]
    end_s, gap_s = np.append(gaps.end_s, ends[inside]), np.append(gaps.gap_s, ends[inside] - ends[inside - 1])
    pairs, which = np.unique(np.stack([end_s, gap_s]), axis=1, return_inverse=True)
    counts = np.bincount(which.ravel(), np.append(gaps.count, decoding), pairs.shape[1]).astype(np.int64)
    return GapColumns(gap_s=pairs[1][counts != 0], count=counts[counts != 0], end_s=pairs[0][counts != 0])
