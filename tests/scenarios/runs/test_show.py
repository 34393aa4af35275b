"""Results in Python: short in a terminal, a table in a notebook, pictures by name; and what they rest on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.profiles import shipped_profiles
from scenarios.runs.comparison import Comparison
from scenarios.runs.result import Result
from scenarios.version import __version__
from simulator.errors import InputError
from tests.scenarios.runs.test_runner import small


@pytest.fixture(scope="module")
def result() -> Result:
    return scenarios.run(small(), log_decisions=True)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return scenarios.compare(small(), ["static", "chunked_prefill"], seeds=2)


def test_a_result_is_a_line(result: Result) -> None:
    assert repr(result).startswith("<Result small, chunked_prefill: 60 requests completed in ")
    assert len(repr(result)) < 200
    assert "\n" not in repr(result)


def test_a_result_names_what_was_lost() -> None:
    text = repr(scenarios.run(small(hardware__num_gpu_blocks=41)))
    assert re.search(r", \d+ rejected>$", text)


def test_a_scenario_is_a_line() -> None:
    assert repr(scenarios.load(small())) == "<Scenario small: chunked_prefill, llama-3.1-8b on a100-80gb, seed 7>"


def test_a_comparison_is_a_line_a_policy(comparison: Comparison) -> None:
    first, *lines = repr(comparison).splitlines()
    assert first == "<Comparison of static, chunked_prefill, seeds 7 to 8; of the first seed:"
    assert [line.split(":")[0].strip() for line in lines] == ["static", "chunked_prefill"]
    assert len(repr(comparison)) < 500


def test_a_notebook_shows_tables(result: Result, comparison: Comparison) -> None:
    for html, labels in ((result._repr_html_(), 1), (comparison._repr_html_(), 2)):
        assert html.count("<tr><th>chunked_prefill</th>") == 3
        assert html.count("<tr>") == 3 * (1 + labels)
        assert html.count("<table>") == html.count("</table>") == 3
        assert "roofline" not in html
        assert "linear (given)" in html
    assert "±" in comparison._repr_html_()


def test_html_is_escaped() -> None:
    from reports.tables.verdict_table import html_table

    text = html_table("<a>", {"<b>": [{"completed": 3}]}, "<c>")
    assert all(f"&lt;{name}&gt;" in text for name in "abc")
    assert "<a>" not in text
    assert "<c>" not in text


@pytest.mark.parametrize(
    "kind",
    [
        "gantt",
        "itl_cdf",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in ("kv_by_request", "ttft_cdf", "tpot_cdf", "e2el_cdf", "timeline", "throughput", "latency")
        ),
    ],
)
def test_every_picture_of_the_report_can_be_had(result: Result, kind: str) -> None:
    picture = result.plot(kind)
    assert picture.name == kind
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert len(repr(picture)) < 500


@pytest.mark.parametrize("one_of", [8, pytest.param(1, marks=pytest.mark.long)])
def test_pictures_are_those_of_the_report(
    one_of: int, result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reports.pages import run_report
    from scenarios.show import report_run

    monkeypatch.setattr(run_report, "plots", lambda *args, plots=run_report.plots: plots(*args)[::one_of])
    run_report.write_report(tmp_path, [report_run(result.shown())])
    for path in sorted((tmp_path / "plots").iterdir()):
        saved = result.plot(path.stem).save(tmp_path / path.name)
        assert saved.read_bytes() == path.read_bytes()


def test_a_comparison_plots_all_policies(comparison: Comparison) -> None:
    assert comparison.plot().name == "latency"
    assert comparison.plot("ttft_cdf").svg != comparison.first["static"].plot("ttft_cdf").svg


def test_unknown_pictures_are_named(result: Result) -> None:
    with pytest.raises(InputError, match="no picture of the kind 'timelin'") as caught:
        result.plot("timelin")
    assert "did you mean `timeline`? allowed: gantt, kv_by_request, ttft_cdf" in (caught.value.hint or "")
    with pytest.raises(InputError, match=r"\.png or \.svg"):
        result.plot("gantt").save("gantt.pdf")


# --------------------------------------------------------------------------------------------------------- provenance


def provenance(**changes: Any) -> Any:
    return scenarios.run(small(workload__requests=3, **changes)).summary["provenance"]


def test_provenance_of_given_costs(result: Result) -> None:
    assert list(result.summary)[-1] == "provenance"
    assert result.summary["provenance"] == {
        "scenario": "small", "policy": "chunked_prefill", "model": "llama-3.1-8b", "gpu": "a100-80gb",
        "tensor_parallel": 1, "replicas": 1, "cost": {"kind": "linear", "error": "given"}, "seed": 7,
        "version": __version__,
    }  # fmt: skip


def test_provenance_of_a_roofline() -> None:
    found = provenance(cost={"kind": "roofline"}, replicas=2, hardware={"gpu": "h100", "tensor_parallel": 2})
    assert (found["gpu"], found["tensor_parallel"], found["replicas"]) == ("h100", 2, 2)
    assert found["cost"] == {"kind": "roofline", "error": "not validated"}


def test_provenance_of_a_profile_is_its_held_out_error(tmp_path: Path) -> None:
    name = "h200-llama-3.1-8b"
    document = json.loads(shipped_profiles()[name].read_text())
    wanted = {f"{kind}_mape_percent": each["random"]["mape"] for kind, each in document["errors"].items()}
    found = provenance(cost={"kind": "profile", "name": name}, hardware={"gpu": "h200"})
    assert len(wanted) == 3
    fitted = found["cost"].pop("fitted")
    assert found["cost"] == {"kind": "profile", "profile": name, "error": wanted}
    assert fitted["attention"] == "measured, prompts and decodes apart"
    del document["errors"]
    (tmp_path / "bare.json").write_text(json.dumps(document))
    found = provenance(cost={"kind": "profile", "path": str(tmp_path / "bare.json")}, hardware={"gpu": "h200"})
    assert found["cost"]["error"] == "not tested"


def test_means_over_seeds_keep_what_is_common(comparison: Comparison) -> None:
    means = comparison.means()["static"]
    assert "seed" not in means["provenance"]
    assert means["provenance"]["policy"] == "static"
    assert "provenance" not in {*means["intervals"], *means["difference_to"]}
    assert [each["provenance"]["seed"] for each in comparison.summaries["static"]] == [7, 8]


# --------------------------------------------------------------------------------------------------------------- save


def test_save_replaces_nothing_unasked(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "run")
    result.save(tmp_path / "run")
    other = scenarios.run(small(seed=8))
    with pytest.raises(InputError, match="holds a run already"):
        other.save(tmp_path / "run")
    other.save(tmp_path / "run", overwrite=True)
    assert json.loads((tmp_path / "run/summary.json").read_text()) == other.summary
