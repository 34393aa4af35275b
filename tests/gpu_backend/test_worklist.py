"""Work lists of the attention kernels: every pair of a row and a key that it sees, exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_backend.attention.worklist import Tiling, WorkList, tilings, work_list
from tools.kernel_bench.speed import decode_items, decode_waves


def lists(
    seqs: list[tuple[int, int, int]], *, group: int = 1, tiling: Tiling | None = None
) -> tuple[WorkList, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """The work of (keys, tokens, first key) sequences, and those columns."""
    columns = np.array(seqs, np.int64).reshape(-1, 3)
    which = np.flatnonzero(columns[:, 1] > 0)
    tiling = tiling or Tiling(16, 16, 64, 4, 1)
    keys, query, first = columns[:, 0], columns[:, 1], columns[:, 2]
    return work_list(keys, query, first, which, group=group, tiling=tiling), columns


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    made = []
    for _ in range(draw(st.integers(1, 5))):
        keys = draw(st.integers(1, 300))
        made.append((keys, draw(st.integers(0, min(keys, 40))), draw(st.integers(0, 30)) * draw(st.integers(0, 1))))
    return made


@given(sequences(), st.sampled_from([1, 3, 4]), st.sampled_from([(16, 16, 32), (32, 8, 64), (16, 16, 512)]))
def test_every_visible_pair_once(seqs: list[tuple[int, int, int]], group: int, sizes: tuple[int, int, int]) -> None:
    work, columns = lists(seqs, group=group, tiling=Tiling(*sizes, 4, 1))
    starts = np.cumsum(columns[:, 1]) - columns[:, 1]
    seen = np.zeros((int(columns[:, 1].sum()) * group, 310), np.int64)
    for seq, row, rows, shift, begin, full, end, _ in work.entries.tolist():
        assert 0 < rows <= sizes[0]
        assert begin <= full <= end
        assert (full - begin) % sizes[1] == 0
        assert end - begin <= sizes[2]
        assert end <= max(begin, (row + rows - 1) // group + shift + 1), "keys are read that no row sees"
        for one in range(row, row + rows):
            position = one // group + shift
            assert position == columns[seq, 0] - columns[seq, 1] + one // group - starts[seq]
            assert full <= max(begin, position + 1), "a key that needs a mask lies in the part that has none"
            seen[one, begin : min(end, position + 1)] += 1
    expected = np.zeros_like(seen)
    for (keys, query, first), start in zip(columns.tolist(), starts.tolist(), strict=True):
        for token in range(query):
            expected[(start + token) * group : (start + token + 1) * group, first : keys - query + token + 1] = 1
    assert (seen == expected).all()


@given(sequences(), st.sampled_from([1, 4]))
def test_every_row_is_written_once(seqs: list[tuple[int, int, int]], group: int) -> None:
    """By the entry itself or by its merge; and every partial result has one writer and one reader."""
    work, columns = lists(seqs, group=group)
    writers = np.zeros(int(columns[:, 1].sum()) * group, np.int64)
    for _, row, rows, _, _, _, _, slot in work.entries.tolist():
        writers[row : row + rows] += slot < 0
    readers = np.zeros(work.slots, np.int64)
    for row, rows, slot, parts in work.merges.tolist():
        assert parts > 1
        writers[row : row + rows] += 1
        readers[slot : slot + parts] += 1
    assert (writers == 1).all()
    assert (readers == 1).all()
    assert sorted(slot for *_, slot in work.entries.tolist() if slot >= 0) == list(range(work.slots))


def test_merges_read_what_their_entries_wrote() -> None:
    work, _ = lists([(200, 1, 0), (40, 1, 0), (130, 20, 0)], group=2)
    for row, rows, slot, parts in work.merges.tolist():
        of_it = [entry for entry in work.entries.tolist() if slot <= entry[7] < slot + parts]
        assert [(entry[1], entry[2]) for entry in of_it] == [(row, rows)] * parts


def test_heavy_entries_come_first() -> None:
    work, _ = lists([(10, 1, 0), (300, 1, 0), (30, 1, 0)])
    sizes = (work.entries[:, 6] - work.entries[:, 5]).tolist(), (work.entries[:, 6] - work.entries[:, 4]).tolist()
    assert sizes[1] == sorted(sizes[1], reverse=True)
    assert sizes[1] == [64, 64, 64, 64, 44, 30, 10]


def test_neighbours_do_not_change_how_a_sequence_is_cut() -> None:
    alone, _ = lists([(500, 1, 0)])
    beside, _ = lists([(500, 1, 0), (7, 1, 0), (90, 1, 0)])
    mine = beside.entries[beside.entries[:, 0] == 0]
    assert (mine[:, 4:7] == alone.entries[:, 4:7]).all()


def test_no_work() -> None:
    work, _ = lists([(5, 0, 0)])
    assert (len(work.entries), len(work.merges), work.slots) == (0, 0, 0)


@given(st.lists(st.integers(0, 3000), max_size=20), st.sampled_from([1, 2, 8]), st.sampled_from([1, 7, 264]))
def test_waves_are_those_of_the_list(context: list[int], kv_heads: int, programs: int) -> None:
    """The number is what the persistent grid does: the program with most items."""
    choice = tilings(128, "bfloat16").decode
    work, _ = lists([(keys, 1, 0) for keys in context if keys], tiling=choice)
    items = len(work.entries) * kv_heads
    rounds = max((len(range(program, items, programs)) for program in range(programs)), default=0)
    assert decode_items(context, kv_heads, choice.chunk) == items
    assert decode_waves(context, kv_heads, choice.chunk, programs) == rounds


def test_waves_of_known_steps() -> None:
    assert decode_waves([4096] * 64, 8, 512, 528) == 8
    assert decode_waves([4096] * 8, 8, 512, 528) == 1
    assert decode_waves([32768], 8, 512, 528) == 1
    assert decode_waves([], 8, 512, 528) == 0


@pytest.mark.parametrize(("head_dim", "dtype"), [(128, "float8"), (0, "float16"), (512, "float16")])
def test_what_no_kernel_takes(head_dim: int, dtype: str) -> None:
    with pytest.raises(ValueError, match="attention kernels work on"):
        tilings(head_dim, dtype)


def test_a_chunk_is_whole_tiles() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        Tiling(16, 48, 512, 4, 3)


def test_decode_tiles_hold_a_group() -> None:
    for group in (1, 4, 16, 17, 71):
        assert tilings(64, "bfloat16", group).decode.block_m >= group
