"""`batchlab bound`, and `--bound` of run and compare."""

import json
from pathlib import Path

from simulator.metrics.summary import METRICS
from tests.command import SMALL, batchlab, small


def test_bounds_and_what_is_reached(tmp_path: Path) -> None:
    done = batchlab("bound", small(tmp_path), "--policies", "static,chunked_prefill", "--json", "--quiet", cwd=tmp_path)
    found = json.loads(done.out)
    assert done.code == 0
    assert set(found["reached"]) == {"static", "chunked_prefill"}
    assert {"mean_ttft_ms", "p99_e2el_ms", "mean_tpot_ms", "slo_attainment", "request_throughput"} <= set(
        found["bounds"]
    )
    for key, bound in found["bounds"].items():
        assert set(bound) == {"value", "by", "assumes"}
        for reached in found["reached"].values():
            if key in reached:
                assert METRICS[key].better * (bound["value"] - reached[key]) >= 0
    words = batchlab("bound", small(tmp_path), "--quiet", cwd=tmp_path).out
    assert "No scheduler can do better" in words
    assert "Largest rate" in words


def test_no_bound_without_a_proof(tmp_path: Path) -> None:
    path = small(tmp_path, SMALL.replace("    - name: chat", "    - name: chat\n      client: {timeout_s: 5}"))
    found = json.loads(batchlab("bound", path, "--json", "--quiet", cwd=tmp_path).out)
    assert not found["bounds"]
    assert "clients give up" in found["why_not"][0]


def test_a_summary_with_bounds(tmp_path: Path) -> None:
    path = small(tmp_path)
    run = json.loads(batchlab("run", path, "--bound", "--json", "--quiet", cwd=tmp_path).out)
    assert 0 < run["bound"]["mean_ttft_ms"] <= run["mean_ttft_ms"]
    plain = json.loads(batchlab("run", path, "--json", "--quiet", "--out", "plain", cwd=tmp_path).out)
    assert {**plain, "bound": run["bound"]} == run
    asked = ("--policies", "static,continuous", "--seeds", "2", "--bound", "--no-report", "--json", "--quiet")
    both = json.loads(batchlab("compare", path, *asked, cwd=tmp_path).out)
    assert both["static"]["bound"] == both["continuous"]["bound"]
    assert both["static"]["bound"]["mean_ttft_ms"] <= both["continuous"]["mean_ttft_ms"]
