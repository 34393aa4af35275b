"""Study files: what they say, and what is wrong with them, with its place."""

from pathlib import Path

import pytest

from scenarios.studies.study import Study, find_study, load_study, parse_vary, study_of
from simulator.errors import InputError

TINY = """\
model: llama-3.1-8b
hardware: {gpu: h200}
cost: {kind: linear, base_s: 0.01, per_token_s: 1.0e-5, per_context_token_s: 0}
workload:
  requests: 20
  classes:
    - name: chat
      arrival: {process: poisson, rate: 5}
      input: {dist: fixed, value: 30}
      output: {dist: fixed, value: 5}
engine: {policy: chunked_prefill, max_num_seqs: 8}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path / "tiny.yaml"


def test_the_contracts_own_study(scenario: Path) -> None:
    file = scenario.parent / "chunks.yaml"
    file.write_text(
        "name: chunk-and-load\n"
        "scenario: tiny.yaml\n"
        "vary:\n"
        "  engine.max_num_batched_tokens: [512, 1024, 2048]\n"
        "  workload.classes.chat.arrival.rate: {from: 2, to: 8, steps: 4, scale: linear}\n"
        '  "engine.max_num_seqs, engine.policy": [[64, static], [256, chunked_prefill]]\n'
        "seeds: 3\n"
    )
    assert find_study(str(file)) == file
    assert find_study(str(scenario)) is None
    assert find_study("quickstart") is None
    shipped = find_study("load-and-budget")
    assert shipped is not None
    assert len(load_study(shipped)) == 54
    study = load_study(file)
    assert study.name == "chunk-and-load"
    assert len(study) == 3 * 4 * 2 * 3
    assert study.keys == (
        "engine.max_num_batched_tokens",
        "workload.classes.chat.arrival.rate",
        "engine.max_num_seqs",
        "engine.policy",
    )
    first = study.scenario(study.settings[0], 2)
    assert first.engine.policy == "static"
    assert first.engine.given()["max_num_seqs"] == 64
    assert first.seed == 2


def parsed(text: str, folder: Path) -> Study:
    """The study that a text holds, as a file of `folder`."""
    path = folder / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return load_study(path)


def test_a_study_written_and_read_again_has_the_same_runs(scenario: Path, tmp_path: Path) -> None:
    axes = [parse_vary("engine.max_num_seqs=1:64:5:log"), parse_vary("engine.policy=static,continuous")]
    study = study_of(str(scenario), axes, seeds=2)
    again = parsed(study.dump(), tmp_path)
    assert again.settings == study.settings
    assert again.seeds == study.seeds
    assert [again.scenario(setting, 1) for setting in again.settings] == [
        study.scenario(setting, 1) for setting in study.settings
    ]


def test_a_range_over_whole_numbers_is_rounded_to_them(scenario: Path) -> None:
    study = study_of(str(scenario), [parse_vary("engine.max_num_seqs=1:10:5:log")])
    assert [setting["engine.max_num_seqs"] for setting in study.settings] == [1, 2, 3, 6, 10]


def test_random_points_keep_their_range_in_the_file(scenario: Path) -> None:
    text = (
        f"scenario: {scenario}\nvary:\n  workload.classes.chat.arrival.rate: {{from: 1, to: 9, steps: 2}}\nsamples: 6\n"
    )
    study = parsed(text, scenario.parent)
    assert len(study) == 6
    assert parsed(study.dump(), scenario.parent).settings == study.settings


def test_points_one_by_one_and_files_beside_the_study(scenario: Path) -> None:
    (scenario.parent / "mine.py").write_text("class Mine: pass\n")
    text = f"scenario: {scenario}\npoints:\n  - {{engine.max_num_seqs: 2}}\n  - {{engine.policy: 'mine.py:Mine'}}\n"
    study = parsed(text, scenario.parent)
    assert study.settings == ({"engine.max_num_seqs": 2}, {"engine.policy": f"{scenario.parent / 'mine.py'}:Mine"})
    assert study.keys == ("engine.max_num_seqs", "engine.policy")


def test_a_misspelt_key_is_refused_where_the_policy_varies_too(scenario: Path) -> None:
    policies = parse_vary("engine.policy=static,chunked_prefill")
    with pytest.raises(InputError, match=r"no policy of the study takes engine\.max_num_seq") as caught:
        study_of(str(scenario), [policies, parse_vary("engine.max_num_seq=8,16")])
    assert "did you mean `max_num_seqs`?" in str(caught.value)
    of_one = study_of(str(scenario), [policies, parse_vary("engine.batch_timeout_s=0,1")])
    assert [engine_value(of_one, place, "batch_timeout_s") for place in range(4)] == [0, 1, None, None]
    by_order = [parse_vary("engine.order=fcfs,fair"), parse_vary("engine.class_weights.chat=1,2")]
    assert len(study_of(str(scenario), [policies, *by_order])) == 8


def engine_value(study: Study, place: int, key: str) -> object:
    return study.scenario(study.settings[place], 0).engine.given().get(key)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("scenario: quickstart\nvari: {}\n", "2:1", "unknown key"),
        ("vary: {a: [1]}\n", "", "scenario: missing"),
        ("scenario: quickstart\n", "", "neither"),
        ("scenario: quickstart\nvary: {a: [1]}\npoints: [{a: 1}]\n", "", "both"),
        ("scenario: quickstart\nvary:\n  a: []\n", "3:", "a has no value"),
        ("scenario: quickstart\nvary:\n  a: {from: 1, to: 2}\n", "3:", "from, to and steps"),
        ("scenario: quickstart\nvary:\n  a: {from: 1, to: 2, steps: 2, by: 3}\n", "3:", "unknown key 'by'"),
        ("scenario: quickstart\nvary:\n  a, b: [1]\n", "3:", "each value is a list of 2"),
        ("scenario: quickstart\nvary: {a: [1], 'a, b': [[1, 2]]}\n", "2:", "a is varied twice"),
        ("scenario: quickstart\npoints: [{a: 1}]\nsamples: 3\n", "3:", "needs `vary`"),
        ("scenario: quickstart\npoints: [{seed: 1}]\n", "2:", "is set by `seeds`"),
        (
            "scenario: quickstart\npoints:\n  - {engine.policy: static}\n  - {engine.max_num_seq: 1}\n",
            "2:",
            "no policy of the study takes engine.max_num_seq",
        ),
        ("scenario: {modell: gpt2}\nvary: {a: [1]}\n", "1:", "unknown key"),
        ("scenario: quickstart\nvary: {a: [1]}\nseeds: 0\n", "3:", "at least 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        parsed(text, tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(f"s.yaml:{place}" if place else "s.yaml")
