"""A scrape of vLLM's /metrics against a run: what is compared, what is not, and what is refused."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import scenarios
from scenarios.measured.read_log import Histogram, is_scrape, read_scrape
from scenarios.runs.result import Result
from scenarios.validate.compare import compare_scrape
from simulator.errors import InputError
from simulator.metrics.latency import e2el_s, tpot_s, ttft_s
from simulator.metrics.vllm_metrics import HISTOGRAMS, one_two_five

LINEAR = "cost={{kind: linear, base_s: {}, per_token_s: 2.0e-5, per_context_token_s: 5.0e-8}}"


@cache
def run(base_s: float = 0.01) -> Result:
    workload = {"preset": "chat", "rate": 4, "requests": 150}
    return scenarios.run(scenarios.load({"workload": workload}, [LINEAR.format(base_s)]))


def scrape_of(result: Result, folder: Path, *, engines: int = 1, times: int = 1, file: str = "m.txt") -> Path:
    """What vLLM's /metrics would say of a run, once or several times over, dealt to engines."""
    records = result.records
    requests = records.requests
    kinds = {
        "time_to_first_token_seconds": ttft_s(records),
        "request_time_per_output_token_seconds": tpot_s(records)[requests.output_tokens > 1],
        "e2e_request_latency_seconds": e2el_s(records),
        "request_queue_time_seconds": requests.scheduled_s - requests.arrival_s,
        "request_prompt_tokens": requests.input_tokens,
        "request_generation_tokens": requests.output_tokens,
    }
    lines = ["# HELP vllm:x Some text.", 'python_gc_objects_collected_total{generation="0"} 1.0']
    for engine in range(engines):
        labels = f'engine="{engine}",model_name="a \\"model\\", so"'
        lines.append(f"vllm:num_preemptions_total{{{labels}}} {6.0 * times / engines}")
        lines += [f"vllm:{name}{{{labels}}} 0.0" for name in ("prefix_cache_queries_total", "num_requests_running")]
        for kind, values in kinds.items():
            own = np.tile(np.asarray(values, dtype=np.float64)[engine::engines], times)
            bounds = [*(HISTOGRAMS[kind] if kind in HISTOGRAMS else one_two_five(131072)), np.inf]
            for bound in bounds:
                text = "+Inf" if bound == np.inf else repr(float(bound))
                lines.append(f'vllm:{kind}_bucket{{{labels},le="{text}"}} {float((own <= bound).sum())}')
            lines += [
                f"vllm:{kind}_sum{{{labels}}} {float(own.sum())!r}",
                f"vllm:{kind}_count{{{labels}}} {float(len(own))}",
            ]
    path = folder / file
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("engines", [1, 3])
def test_a_run_against_its_own_scrape_has_no_error(tmp_path: Path, engines: int) -> None:
    path = scrape_of(run(), tmp_path, engines=engines)
    assert is_scrape(path)
    found = compare_scrape(read_scrape(path), run().records)
    assert len(found.scored) == 12
    assert max(map(abs, found.scored.values())) < 1e-9
    assert found.requests == (150, 150)
    assert not found.notes
    assert [each.name for each in found.counts] == ["preemptions for each request"]
    assert found.counts[0].measured == pytest.approx(6 / 150)
    assert any("request_decode_time_seconds" in each for each in found.missing)
    assert any("of queue time (below 300 ms, the server's first bucket)" in each for each in found.missing)


def test_a_slower_server_shows_in_tpot(tmp_path: Path) -> None:
    found = compare_scrape(read_scrape(scrape_of(run(0.02), tmp_path)), run(0.01).records)
    assert found.scored["tpot mean"] == pytest.approx(-0.5, abs=0.06)
    data = found.data()
    assert data["makespan"] is None
    assert set(data["errors"]) >= {"ttft", "tpot", "e2e", "queue_time"}  # type: ignore[call-overload] # a mapping
    assert any("throughput" in each for each in data["not_compared"])  # type: ignore[attr-defined] # a list


def test_what_came_between_two_scrapes(tmp_path: Path) -> None:
    """Both runs, less the first, is the second."""
    before, both = scrape_of(run(), tmp_path), scrape_of(run(), tmp_path, times=3, file="late.txt")
    found = compare_scrape(read_scrape(both).since(read_scrape(before)), run().records)
    assert found.requests == (300, 150)
    assert max(map(abs, found.scored.values())) < 1e-9
    with pytest.raises(InputError, match="is smaller than in"):
        read_scrape(before).since(read_scrape(both))


def test_other_traffic_is_told(tmp_path: Path) -> None:
    other = scenarios.run(scenarios.load({"workload": {"preset": "long-context", "rate": 1, "requests": 20}}))
    notes = compare_scrape(read_scrape(scrape_of(run(), tmp_path)), other.records).notes
    assert any("the mean of prompt tokens is" in note for note in notes)


def test_quantiles_are_linear_within_a_bucket() -> None:
    of = Histogram(np.array([1.0, 2.0, np.inf]), np.array([2.0, 6.0, 8.0]), 12.0)
    assert [of.is_told(share) for share in (0.125, 0.25, 0.5)] == [False, False, True]
    assert (of.mean, of.quantile(0.125), of.quantile(0.5), of.quantile(0.99)) == (1.5, 0.5, 1.5, 2.0)
    assert np.isnan(Histogram(np.array([np.inf]), np.array([0.0]), 0.0).quantile(0.5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm:time_to_first_token_seconds_sum 1\nnonsense\n", ":2: not a sample"),
        ("vllm:time_to_first_token_seconds_sum x\n", ":1: not a sample"),
        ("vllm:num_preemptions_total 1\n", "no histogram vllm:time_to_first_token_seconds"),
    ],
)
def test_a_bad_scrape_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "m.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_scrape(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scenarios.cli.flags import Console
    from scenarios.cli.validate import validate_scrape

    path = scrape_of(run(), tmp_path)
    chosen = scenarios.load({"workload": {"preset": "chat", "rate": 4, "requests": 150}}, [LINEAR.format(0.01)])
    for json in (False, True):
        validate_scrape(
            chosen, path, None, tmp_path / "out", Console(quiet=True), overwrite=True, json=json, report=json
        )
    said = capsys.readouterr().out
    assert "TPOT p99" in said
    assert "Not compared: makespan and throughput" in said
    assert '"not_compared"' in said
    assert (tmp_path / "out/validation.json").is_file()
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "a scrape of /metrics, m.txt" in page
    assert "Not compared: makespan and throughput" in page
    assert "TPOT p99" in page
    assert (tmp_path / "out/plots/errors.svg").is_file() or (tmp_path / "out/plots/errors.png").is_file()
