"""Rows that are parsed together give what they give one by one, on odd and broken files too."""

import gzip
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions, columns, format
from scenarios.traces.columns import Cut, collect
from scenarios.traces.read import open_trace
from scenarios.traces.rows import Tally
from simulator.errors import InputError
from tests.examples import examples
from tests.scenarios.traces.test_read import write

SECONDS = ("0.1", "1e3", "7", "-0.0", ".5", "0x1", "1_0", "nan", "-2", "1e13")
STAMPS = (
    "2023-11-16 18:15:46.6805900", "2023-11-16T18:15:46", "2024-02-30 00:00:00", "2024-02-29 23:59:59.123456789",
    "2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00+00:00", "2025-01-01T00:00:00.123Z",
    "2025-01-01 24:00:00", "2025-01-01 10:10:60", "2201-01-01 00:00:00", "1969-12-31 00:00:00",
    "2025-01-01 10:10:10.1234567891", "2025-01-01 10:10:10+02:00", " 2025-01-01 10:10:10",
)  # fmt: skip
HEADERS = {
    "arrival_time_s,input_tokens,output_tokens": ("{time},{a},{b}", SECONDS),
    "class,arrival_time_s,input_tokens,output_tokens,request_id": ("{name},{time},{a},{b},{name}{a}", SECONDS),
    "TIMESTAMP,ContextTokens,GeneratedTokens": ("{time},{a},{b}", STAMPS),
}
COUNTS = ("1", "374", "999999999", "0", "-1", "007", "1.0", " 5", "", "2147483648", "12345678901234", "٣", "x", '"8"')


def found(path: Path, options: TraceOptions, together: bool) -> Any:
    """Everything that reading a file gives: its columns and tallies, or its error."""
    skipped, cut = Tally(str(path), options.strict), Cut()
    try:
        with open_trace(path, options) as opened:
            trace = opened.trace if together else replace(opened.trace, parse_plain=None)
            kept = collect(trace, options, skipped, cut)
            remarks = trace.remarks()
    except InputError as error:
        return str(error)
    return repr(kept), skipped, cut, remarks


@st.composite
def files(draw: st.DrawFn) -> str:
    header = draw(st.sampled_from(sorted(HEADERS)))
    row, times = HEADERS[header]
    usual = draw(st.lists(st.sampled_from(times), min_size=1, max_size=2))  # mostly alike, or no block would be plain
    odd = st.builds(
        row.format, time=st.sampled_from(times), a=st.sampled_from(COUNTS), b=st.sampled_from(COUNTS),
        name=st.sampled_from(["", "a", " ", "é"]),
    )  # fmt: skip
    plain = st.builds(row.format, time=st.sampled_from(usual), a=st.just("12"), b=st.just("3"), name=st.just("n"))
    rows = draw(st.lists(plain | plain | plain | odd | st.sampled_from(["1,2", ",,,,,", "1,2,3,4,5,6,7"]), max_size=12))
    return "\n".join([header, *rows]) + "\n"


@examples(300)
@given(text=files(), strict=st.booleans(), size=st.integers(1, 5))
def test_rows_together_are_as_rows_one_by_one(
    text: str, strict: bool, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("trace"), text, "trace.csv")
    options = TraceOptions(strict=strict)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "ROWS", size)
        patch.setattr(columns, "_FEWEST_AT_ONCE", 1)
        assert found(path, options, together=True) == found(path, options, together=False)


def test_rows_before_a_break_in_the_file_are_seen_first(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv.gz"
    text = (
        "arrival_time_s,input_tokens,output_tokens\n" + "".join(f"{i},5,6\n" for i in range(30_000)) + "x,1,1\n" * 9_000
    )
    path.write_bytes(gzip.compress(text.encode())[:-200])
    for strict in (True, False):
        texts = {found(path, TraceOptions(strict=strict), together) for together in (True, False)}
        assert len(texts) == 1, texts


@pytest.mark.parametrize("header", sorted(HEADERS))
def test_plain_rows_are_parsed_together(header: str, tmp_path: Path) -> None:
    row, times = HEADERS[header]
    text = "\n".join([header, *(row.format(time=times[0], a=5, b=6, name="n") for _ in range(9))])
    path = write(tmp_path, text + "\n", "trace.csv")
    with open_trace(path, TraceOptions()) as opened:
        refused = replace(opened.trace, parse=lambda row: pytest.fail(f"{row} was parsed alone"))
        kept = collect(refused, TraceOptions(), Tally(str(path)), Cut())
    assert kept.line.tolist() == list(range(2, 11))
    assert all(after - before == 1 for before, after in pairwise(kept.row))
