import re
import subprocess
import sys
from pathlib import Path

import pytest

from reports.tables.terminal import Terminal
from reports.tables.verdict_table import MARK, cells, note, shown, verdict_table
from reports.verdict.shown_metrics import BLOCKS, COLUMNS, Summaries, Summary, best, estimate, is_real, joined, ranked
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS, summarize
from tests.reports_maker import continuous, static

SLO = Slo(ttft_ms=1000, tpot_ms=50)
LATENCY = next(block for block in BLOCKS if block.title == "Latency")


def over(key: str, **runs: list[float | None]) -> Summaries:
    return {label: [{key: value} for value in each] for label, each in runs.items()}


@pytest.fixture(scope="module")
def three_seeds() -> Summaries:
    return {
        "static": [summarize(static(80, seed=seed), slo=SLO) for seed in range(3)],
        "continuous": [summarize(continuous(80, seed=seed), slo=SLO) for seed in range(3)],
    }


def test_columns_are_keys_of_the_summary() -> None:
    known = {*summarize(static(5), slo=SLO), "gpu_hours", "usd_per_million_output_tokens"}
    assert {key for key in COLUMNS if not METRICS[key].is_rare} <= known


def test_every_column_has_its_unit(three_seeds: Summaries) -> None:
    text = verdict_table(three_seeds, SLO)
    seen = set()
    always = [block for block in BLOCKS if not block.where]
    for block in always:
        head, units, *_ = text[text.index(block.title) :].splitlines()
        for column, by_label in shown(three_seeds, block):
            # A unit ends where its title ends.
            end = head.index(column.title) + len(column.title)
            if any(cell.interval.endswith(" s") for cell in by_label.values()):
                assert units.ljust(end)[:end].endswith("   "), "each cell has its own"
            else:
                assert units[:end].endswith(column.unit), column
                assert column.unit or column.key in ("preemptions", "p99_ttft_ms", "saturated")
            seen.add(column.key)
    # No summary has the price; of the losses there was none; one replica has none to be compared with.
    unseen = {"usd_per_million_output_tokens", "rejected", "unfinished", "preemptions"}
    unseen |= {"balance_cv", "least_busy_fraction", "most_busy_fraction"}
    assert seen == {column.key for block in always for column in block.columns} - unseen


@pytest.mark.parametrize(
    ("where", "title", "others"),
    [
        ("aborted", "What became of them", {"served": 3, "given_up": 2, "attempts_per_request": 1.5}),
        ("peak_replicas", "Replicas", {"mean_replicas": 2.5, "scale_outs": 3, "gpu_hours": 0.7}),
    ],
)
def test_blocks_that_only_some_runs_have(where: str, title: str, others: Summary) -> None:
    text = verdict_table({"a": [{where: 4, **others}]})
    assert title in text
    assert all(COLUMNS[key].title in text for key in (where, *others))
    for nothing in (0, None):
        assert title not in verdict_table({"a": [{where: nothing, **others}]})


def test_columns_are_aligned(three_seeds: Summaries) -> None:
    for block in verdict_table(three_seeds, SLO).split("\n\n")[: sum(not block.where for block in BLOCKS)]:
        _, _, *lines = block.splitlines()
        assert len(lines) == 2
        signs = [[i for i, c in enumerate(line) if c in "±["] for line in lines]
        assert signs[0] == signs[1]
        assert signs[0]
        assert all(line == line.rstrip() for line in lines)


def test_one_seed_is_aligned_to_the_right() -> None:
    text = verdict_table({"a": [{"p99_ttft_ms": 5.0}], "long label": [{"p99_ttft_ms": 1345.25}]})
    assert text.splitlines()[:4] == [
        "Latency     TTFT p99",
        "                  ms",
        "a               5.00*",
        "long label  1,345.25",
    ]


def test_lines_are_not_wide(three_seeds: Summaries) -> None:
    assert max(len(line) for line in verdict_table(three_seeds, SLO).splitlines()) <= 130


def test_the_same_summaries_make_the_same_text(three_seeds: Summaries) -> None:
    assert verdict_table(three_seeds, SLO) == verdict_table(dict(three_seeds), SLO)


def test_a_real_difference_is_marked_and_noise_is_not() -> None:
    column = COLUMNS["p99_ttft_ms"]
    clear = over("p99_ttft_ms", a=[100, 120, 140], b=[110, 131, 149])
    assert best(clear, column) == ("a",), "paired: the seeds differ more than the policies"
    noise = over("p99_ttft_ms", a=[100, 120, 140], b=[110, 111, 150])
    assert best(noise, column) == ()
    assert not any(cell.is_best for cell in cells(noise, column).values())


def test_best_must_beat_everybody() -> None:
    column = COLUMNS["output_throughput"]
    runs = over("output_throughput", a=[10, 20, 30], b=[11, 21, 31], c=[11.1, 21, 31])
    assert best(runs, column) == ()
    assert best({"a": runs["a"], "b": runs["b"]}, column) == ("b",)


def test_one_seed_is_marked_with_its_note() -> None:
    runs = over("p99_ttft_ms", a=[100], b=[110])
    assert best(runs, COLUMNS["p99_ttft_ms"]) == ("a",)
    assert "Other seeds may disagree" in note(runs)
    assert f"100{MARK}" in verdict_table(runs)


def test_what_reads_the_same_is_not_marked() -> None:
    runs = over("p99_ttft_ms", a=[100.0001], b=[100.0002])
    assert MARK not in verdict_table(runs).split("\n\n")[0]


def test_equals_are_not_marked() -> None:
    assert best(over("completed", a=[5], b=[5]), COLUMNS["completed"]) == ()
    assert best(over("completed", a=[5, 5], b=[5, 5]), COLUMNS["completed"]) == ()


def test_twins_are_marked_together_where_they_beat_the_others() -> None:
    runs = over("completed", a=[5, 6], b=[1, 2], c=[5, 6])
    assert best(runs, COLUMNS["completed"]) == ("a", "c")
    assert [cell.is_best for cell in cells(runs, COLUMNS["completed"]).values()] == [True, False, True]
    assert best(over("rejected", a=[0], b=[0], c=[0], d=[9]), COLUMNS["rejected"]) == ()


def test_columns_without_a_better_are_not_marked() -> None:
    assert best(over("batch_occupancy", a=[0.5], b=[0.9]), COLUMNS["batch_occupancy"]) == ()


def test_interval_is_students() -> None:
    runs: list[Summary] = [{"x": value} for value in (1.0, 2.0, 3.0)]
    found = estimate(runs, "x")
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.302652729911275 / 3**0.5)
    assert estimate(runs[:1], "x").half_width is None


def test_undefined_values_are_a_dash() -> None:
    runs = over("p99_tpot_ms", a=[None], b=[30.0])
    assert cells(runs, COLUMNS["p99_tpot_ms"])["a"].mean == "-"
    assert best(runs, COLUMNS["p99_tpot_ms"]) == (), "nobody to beat"
    assert verdict_table(over("p99_tpot_ms", a=[None]), None) == "\n"


def test_runs_that_cannot_be_paired_show_nothing() -> None:
    assert not is_real([{"x": 1}, {"x": 1}], [{"x": 9}, {"x": 9}, {"x": 9}], "x")


def test_saturated_counts_seeds() -> None:
    found = cells(over("saturated", a=[True, False], b=[True, True], c=[None, None]), COLUMNS["saturated"])
    assert {label: cell.mean for label, cell in found.items()} == {"a": "1 of 2", "b": "yes", "c": "-"}


def test_labels_cannot_break_a_line() -> None:
    text = verdict_table({"two\nlines\x1b[2J": [{"completed": 3}]})
    assert "two lines [2J" in text


def test_ranked_and_joined() -> None:
    runs = over("x", a=[3], b=[None], c=[1])
    assert ranked(runs, "x", -1) == ["c", "a"]
    assert joined(["a"]) == "a"
    assert joined("abc") == "a, b and c"


def test_losses_are_shown_where_there_are_some() -> None:
    table = verdict_table(over("rejected", a=[0], b=[2])).split("\n\n")[0]
    assert [line.split() for line in table.splitlines()[2:]] == [["a", "0*"], ["b", "2"]]
    assert "rejected" not in verdict_table(over("rejected", a=[0], b=[0]))
    assert "goodput" in verdict_table(over("request_goodput", a=[0], b=[0])), "no loss: nothing of it is news"


def test_long_latencies_have_units_of_their_own() -> None:
    text = verdict_table(over("p99_ttft_ms", static=[4_124_094.0], chunked=[45.2], slow=[None], other=[35_431.0]))
    assert text.split("\n\n")[0].splitlines() == [
        "Latency  TTFT p99",
        "static   68.7 min",
        "chunked   45.2 ms*",
        "slow            -",
        "other      35.4 s",
    ]


def test_intervals_take_the_unit_of_their_mean() -> None:
    found = cells(over("p99_ttft_ms", a=[60e3, 61e3, 62e3], b=[40.0, 41.0, 42.0]), COLUMNS["p99_ttft_ms"])
    assert [(cell.mean, cell.interval) for cell in found.values()] == [("61.0", "±  2.5 s"), ("41.0", "± 2.5 ms")]


def test_long_latencies_that_are_near_share_one_unit() -> None:
    (column, found), *_ = shown(over("p99_ttft_ms", a=[14_585.0], b=[4_737.0], c=[3_500.0]), LATENCY)
    assert (column.unit, [cell.mean for cell in found.values()]) == ("s", ["14.59", "4.74", "3.50"])
    assert found["c"].is_best


def test_short_latencies_share_one_unit() -> None:
    found = cells(over("p99_ttft_ms", a=[9_999.0], b=[45.0]), COLUMNS["p99_ttft_ms"])
    assert [cell.mean for cell in found.values()] == ["9,999", "45"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_gets_narrow_lines(three_seeds: Summaries, width: int) -> None:
    narrow = verdict_table(three_seeds, SLO, terminal=Terminal(width))
    assert max(map(len, narrow.splitlines())) <= width
    plain = verdict_table(three_seeds, SLO)
    assert set(re.findall(r"[\d.,]+", narrow)) >= set(re.findall(r"[\d.,]+", plain)), "every number is still there"


def test_colours_change_no_text(three_seeds: Summaries) -> None:
    painted = verdict_table(three_seeds, SLO, terminal=Terminal(colour=True))
    assert "\x1b[1;32m" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == verdict_table(three_seeds, SLO)


def test_nothing() -> None:
    assert verdict_table({}) == "nothing to compare\n"


def test_the_table_needs_no_matplotlib() -> None:
    code = (
        "import sys; from reports.tables import details, verdict_table\n"
        "print('matplotlib' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"


def test_runs_that_are_not_paired_have_no_best() -> None:
    runs = over("p99_ttft_ms", a=[10.0], b=[20.0])
    assert MARK in verdict_table(runs)
    assert MARK not in verdict_table(runs, paired=False)
