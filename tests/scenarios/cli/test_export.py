"""`batchlab export`: what each tool's own reader finds in what was written."""

import gzip
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reports.exports.exported_run import export_formats
from scenarios.cli.export import FORMATS
from scenarios.measured.read_log import read_measured
from scenarios.runs.storage.run_folder import own_names
from scenarios.traces import read_trace
from tests.command import SMALL, batchlab, small, tree
from tests.perfetto_engine import loaded

TIGHT = (
    SMALL.replace("num_gpu_blocks: 400", "num_gpu_blocks: 60")
    .replace("max: 60", "max: 200")
    .replace("max: 900", "max: 400")
    .replace("chunked_prefill, max", "chunked_prefill, max_queued_requests: 12, max")
)
"""Preemptions, rejections, prompts in chunks; two replicas."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    text = TIGHT.replace("rate: 20", "rate: 60").replace("slo:", "replicas: 2\nslo:")
    done = batchlab("run", small(folder, text), "--log-decisions", "--out", "run", "--quiet", cwd=folder)
    assert done.code == 0, done.err
    return folder / "run"


@pytest.fixture(scope="module")
def requests(run: Path) -> pd.DataFrame:
    found = pd.read_csv(run / "requests.csv.gz", dtype={"request_id": str})
    assert found.preemptions.sum() >= 5
    assert {"finished", "rejected"} == set(found.status)
    return found


@pytest.fixture(scope="module")
def decisions(run: Path) -> list[dict[str, Any]]:
    with gzip.open(run / "decisions.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def exported(run: Path, tmp_path: Path, *formats: str) -> Path:
    flags = [word for name in formats for word in ("--format", name)]
    done = batchlab("export", run, *flags, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.code == 0, done.err
    return tmp_path / "out"


def test_formats_and_files_are_those_of_the_rooms_that_own_them() -> None:
    formats = export_formats()
    assert tuple(formats) == FORMATS
    assert all(own_names().issuperset(each.files) for each in formats.values())


# Perfetto

SAMPLES = """select c.ts, c.value from counter c join process_counter_track t on t.id = c.track_id join process p
using (upid) where t.name like '{}%' and p.name = 'replica {}' order by c.ts"""


def test_perfetto_counts_what_was_recorded(
    run: Path, requests: pd.DataFrame, decisions: list[dict[str, Any]], tmp_path: Path
) -> None:
    trace = exported(run, tmp_path, "perfetto") / "trace.json"
    served = requests[requests.status == "finished"]
    with loaded(trace) as found:
        assert found.rows("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []

        def count(category: str) -> int:
            number: int = found.one(f"select count(*) from slice where category = '{category}'")
            return number

        steps = "select sum(extract_arg(arg_set_id, 'args.steps')) from slice where category = 'step'"
        assert found.one(steps) == len(decisions)
        assert count("preemption") == requests.preemptions.sum()
        assert count("arrival") == len(requests)
        assert count("request") == len(served) + requests.preemptions.sum()
        assert found.one("select count(distinct name) from slice where category = 'request'") == len(served)
        assert found.one("select count(*) from flow") == requests.preemptions.sum()
        # No phase leaves its request's stay, no stay another's slot.
        assert found.one("select count(*) from slice where category = 'request' and depth > 0") == 0
        assert found.one("select count(*) from slice where category = 'phase' and depth != 1") == 0
        assert found.one("select count(*) from slice where category = 'chunk' and depth != 2") == 0
        # A request runs from its first step to its last token.
        spans = "select name, min(ts), max(ts + dur) from slice where category = 'request' group by name"
        for name, start_ns, end_ns in found.rows(spans):
            (row,) = served[served.request_id == name].itertuples()
            assert (start_ns, end_ns) == (round(1e9 * row.scheduled_s), round(1e9 * row.released_s))
        # Chunks of prompts are those of the decisions.
        chunks = Counter(
            (name, tokens) for step in decisions for name, tokens in step["scheduled"].items() if tokens > 1
        )
        parents = "select p.name, extract_arg(c.arg_set_id, 'args.tokens') from slice c join slice f on f.id = "
        parents += "c.parent_id join slice p on p.id = f.parent_id where c.category = 'chunk'"
        assert Counter(pair for pair in found.rows(parents) if pair[1] > 1) == chunks
        # At the start of each row of the steps the counters say what stands in it.
        table = pd.read_csv(run / "steps.csv.gz")
        columns = {"running requests": "running", "waiting requests": "waiting", "KV blocks": "used_blocks"}
        for counter, column in columns.items():
            for replica, own in table.groupby("replica"):
                samples = found.rows(SAMPLES.format(counter, replica))
                at = np.searchsorted([ts for ts, _ in samples], np.round(1e9 * own.start_s), side="right") - 1
                assert [samples[place][1] for place in at] == own[column].tolist(), counter
        assert found.rows("select name from process where name is not null order by pid") == [
            ("replica 0",),
            ("replica 1",),
            ("clients",),
        ]


def test_a_run_without_decisions_shows_whole_prefills(run: Path, requests: pd.DataFrame, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("decisions.jsonl.gz"))
    trace = exported(tmp_path / "bare", tmp_path, "perfetto") / "trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    assert not [event for event in events if event.get("cat") == "chunk"]
    prefills = [event for event in events if event["name"] == "prefill" and event["cat"] == "phase"]
    assert len(prefills) == (requests.status == "finished").sum() + requests.preemptions.sum()


@pytest.mark.parametrize("policy", ["static", "continuous", "preemptive", "sglang"])
def test_other_policies_make_traces_without_overlaps(policy: str, tmp_path: Path) -> None:
    """Of each track: slices that begin later end earlier, or begin after the end."""
    scenario = small(tmp_path, SMALL.replace("chunked_prefill", policy))
    assert batchlab("run", scenario, "--out", "run", "--quiet", cwd=tmp_path).code == 0
    events = json.loads((exported(tmp_path / "run", tmp_path, "perfetto") / "trace.json").read_text())["traceEvents"]
    open_: dict[int, list[float]] = {}
    for event in events:
        if event["ph"] == "X":
            ends = open_.setdefault(event["tid"], [])
            start, end = round(1000 * event["ts"]), round(1000 * event["ts"]) + round(1000 * event["dur"])
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1], event
            ends.append(end)


def test_prefill_and_decode_apart_stand_where_they_happened(tmp_path: Path) -> None:
    fleet = "fleet: [{name: a, role: prefill, replicas: 2}, {name: b, role: decode, replicas: 1}]\nslo:"
    scenario = small(tmp_path, SMALL.replace("slo:", fleet))
    assert batchlab("run", scenario, "--out", "run", "--quiet", cwd=tmp_path).code == 0
    moved = pd.read_csv(tmp_path / "run" / "transfers.csv.gz")
    assert len(moved) > 30
    events = json.loads((exported(tmp_path / "run", tmp_path, "perfetto") / "trace.json").read_text())["traceEvents"]
    phases = Counter((event["pid"], event["name"]) for event in events if event.get("cat") == "phase")
    whole = pd.read_csv(tmp_path / "run" / "requests.csv.gz").replica.add(1).value_counts()  # of one token: never moved
    for pid in (1, 2):
        assert phases[pid, "prefill"] == (moved.from_replica + 1 == pid).sum() + whole.get(pid, 0)
    assert phases[3, "prefill"] == 0
    assert phases[3, "decode"] == len(moved)
    arrows = Counter(flag for event in events for flag in ("flow_in", "flow_out") if flag in event)
    assert arrows["flow_in"] == arrows["flow_out"] >= len(moved)
    assert len([event for event in events if event.get("cat") == "transfer"]) == len(moved)


# Logs of load generators


@pytest.mark.parametrize(("name", "file"), [("vllm", "vllm-bench.json"), ("aiperf", "profile_export.jsonl")])
def test_our_own_reader_of_measured_logs_reads_it(
    name: str, file: str, run: Path, requests: pd.DataFrame, tmp_path: Path
) -> None:
    log = read_measured(exported(run, tmp_path, name) / file)
    served = requests[requests.status == "finished"].sort_values("arrival_s", kind="stable")
    assert log.rows == len(requests)
    np.testing.assert_allclose(log.ttft_s, served.ttft_ms / 1e3, atol=2e-9)
    np.testing.assert_allclose(log.e2el_s, served.e2el_ms / 1e3, atol=2e-9)
    assert log.output_tokens.tolist() == served.output_tokens.tolist()


def test_aiperfs_summary(run: Path, requests: pd.DataFrame, tmp_path: Path) -> None:
    summary = json.loads((exported(run, tmp_path, "aiperf") / "profile_export_aiperf.json").read_text())
    own = json.loads((run / "summary.json").read_text())
    for metric, key in (("time_to_first_token", "ttft"), ("request_latency", "e2el"), ("inter_token_latency", "tpot")):
        assert summary[metric]["unit"] == "ms"
        assert summary[metric]["avg"] == pytest.approx(own[f"mean_{key}_ms"])
        assert summary[metric]["p99"] == pytest.approx(own[f"p99_{key}_ms"])
    assert summary["inter_chunk_latency"]["avg"] == pytest.approx(own["mean_itl_ms"])
    assert summary["error_request_count"]["avg"] == (requests.status == "rejected").sum()
    assert sum(each["count"] for each in summary["error_summary"]) == (requests.status == "rejected").sum()


def test_guidellms_trace_is_a_trace(run: Path, requests: pd.DataFrame, tmp_path: Path) -> None:
    workload = read_trace(exported(run, tmp_path, "guidellm") / "guidellm-trace.jsonl")
    np.testing.assert_allclose(workload.arrival_s, requests.arrival_s - requests.arrival_s[0], atol=1e-6)
    assert workload.input_tokens.tolist() == requests.input_tokens.tolist()
    served = requests.status == "finished"
    assert workload.output_tokens[served].tolist() == requests.output_tokens[served].tolist()


# Metrics and tables


def test_prometheus_reads_the_snapshot(run: Path, requests: pd.DataFrame, tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the extra `serve`")
    text = (exported(run, tmp_path, "prometheus") / "metrics.prom").read_text()
    assert "_created" not in text
    samples: Counter[str] = Counter()
    buckets: Counter[tuple[str, float]] = Counter()
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name] += sample.value
            if "le" in sample.labels:
                buckets[sample.name, float(sample.labels["le"])] += sample.value
    served = requests[requests.status == "finished"]
    for name, column in (("request_num_preemptions", "preemptions"), ("request_generation_tokens", "output_tokens")):
        for most in (1, 2, 5, 10, float("inf")):
            assert buckets[f"vllm:{name}_bucket", most] == (served[column] <= most).sum()
    assert samples["vllm:prompt_tokens_total"] == served.input_tokens.sum()
    assert samples["vllm:generation_tokens_total"] == served.output_tokens.sum()
    assert samples["vllm:num_preemptions_total"] == requests.preemptions.sum()
    assert samples["vllm:request_success_total"] == len(served)
    assert samples["vllm:admission_rejections_total"] == (requests.status == "rejected").sum()
    assert samples["vllm:time_to_first_token_seconds_count"] == len(served)
    assert samples["vllm:time_to_first_token_seconds_sum"] == pytest.approx(served.ttft_ms.sum() / 1e3)
    assert samples["vllm:inter_token_latency_seconds_count"] == (served.output_tokens - 1).sum()
    assert samples["vllm:request_queue_time_seconds_sum"] == pytest.approx(served.queue_time_ms.sum() / 1e3)
    assert samples["vllm:num_requests_running"] == samples["vllm:num_requests_waiting"] == 0


def test_parquet_is_the_tables(run: Path, requests: pd.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    out = exported(run, tmp_path, "parquet")
    assert sorted(path.name for path in out.iterdir()) == ["replicas.parquet", "requests.parquet", "steps.parquet"]
    found = pd.read_parquet(out / "requests.parquet")
    assert list(found) == list(requests)
    for name in ("arrival_s", "first_token_s", "output_tokens", "preemptions"):
        np.testing.assert_array_equal(found[name], requests[name])
    assert found.first_token_s.isna().sum() == (requests.status == "rejected").sum()


# The verb


def test_equal_runs_give_equal_bytes_beside_the_run(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    flags = [word for name in FORMATS for word in ("--format", name)]
    assert batchlab("export", "run", *flags, cwd=tmp_path).code == 0
    first = tree(tmp_path)
    assert {"run/trace.json", "run/vllm-bench.json", "run/metrics.prom"} <= set(first)
    assert batchlab("export", "run", *flags, cwd=tmp_path).code == 0
    assert tree(tmp_path) == first
    other = exported(run, tmp_path, *FORMATS)
    assert {f"run/{name}": digest for name, digest in tree(other).items()}.items() <= first.items()


def test_what_is_refused(run: Path, tmp_path: Path) -> None:
    wrong = batchlab("export", run, "--format", "perfeto", "--out", tmp_path / "x", cwd=tmp_path)
    assert wrong.code == 2
    assert "did you mean `perfetto`?" in wrong.err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    refused = batchlab("export", run, "--out", tmp_path / "full", cwd=tmp_path)
    assert refused.code == 2
    assert not list((tmp_path / "full").glob("trace*"))
    comparison: list[str | Path] = [
        "compare",
        small(tmp_path),
        "--policies",
        "static,continuous",
        "--no-report",
        "--out",
        "both",
    ]
    assert batchlab(*comparison, "--quiet", cwd=tmp_path).code == 0
    several = batchlab("export", "both", cwd=tmp_path)
    assert several.code == 2
    assert "takes one run" in several.err
    assert "static" in several.err


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif("BATCHLAB_VLLM_PYTHON" not in os.environ, reason="needs vLLM: BATCHLAB_VLLM_PYTHON")
def test_vllms_own_code_finds_the_same_fields_and_figures(run: Path, tmp_path: Path) -> None:
    file = exported(run, tmp_path, "vllm") / "vllm-bench.json"
    program = Path(__file__).with_name("vllm_bench_fields.py")
    done = subprocess.run(
        [os.environ["BATCHLAB_VLLM_PYTHON"], str(program), str(file)], capture_output=True, text=True, check=True
    )
    theirs, ours = json.loads(done.stdout.splitlines()[-1]), json.loads(file.read_text())
    head, body = theirs["fields"]
    optional = ("ramp_up", "spec_decode", "diffusion", "rps_change")
    fields = [name for name in [*head, *body] if not name.startswith(optional)]
    assert [name for name in ours if not name.endswith("_ms")] == fields
    same = {"total_input": "total_input_tokens", "total_output": "total_output_tokens"}
    for name, value in theirs["figures"].items():
        assert ours[same.get(name, name)] == pytest.approx(value, rel=1e-6), name
