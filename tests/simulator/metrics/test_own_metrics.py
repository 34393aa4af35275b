"""Metrics of the user's own: what is said of one that is wrong."""

from pathlib import Path

import pytest

import scenarios
from reports.tables.verdict_table import verdict_table
from simulator.errors import InputError

HEAD = "from simulator.metrics.metric import Metric\n"


def run(folder: Path, *metrics: str, names: tuple[str, ...] = ("M",)) -> scenarios.Result:
    text = HEAD + "".join(f"{name} = Metric({metric})\n" for name, metric in zip(names, metrics, strict=True))
    (folder / "mine.py").write_text(text, encoding="utf-8")
    measure = {"metrics": [f"{folder}/mine.py:{name}" for name in names]}
    workload = {"preset": "chat", "rate": 2, "requests": 5}
    return scenarios.run(scenarios.load({"workload": workload, "measure": measure}))


def test_values_and_their_column(tmp_path: Path) -> None:
    metrics = ('"halves", "halves", "", "d", lambda s: s.completed / 2', '"none", "n", "", "d", lambda s: None')
    found = run(tmp_path, *metrics, names=("M", "N")).summary
    assert (found["halves"], found["none"]) == (2.5, None)
    table = verdict_table({"a": [found]})
    assert "Metrics of your own" in table
    assert "halves" in table


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ('"completed", "c", "", "d", lambda s: 1', "the key 'completed' is taken"),
        ('"my key", "c", "", "d", lambda s: 1', "'my key' is taken, or no word"),
        ('"mine", "c", "", "d", None', "mine has no `of`"),
        ('"mine", "c", "", "d", lambda s: 1 / 0', "mine fails: ZeroDivisionError"),
        ('"mine", "c", "", "d", lambda s: float("inf")', "mine gives inf"),
        ('"mine", "c", "", "d", lambda s: "x"', "mine gives 'x'"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(metric: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        run(tmp_path, metric)
    assert "mine.py" in str(caught.value)


def test_two_metrics_need_two_keys(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a second metric has the key 'mine'"):
        run(tmp_path, *['"mine", "c", "", "d", lambda s: 1'] * 2, names=("M", "N"))


def test_a_missing_file_is_named_at_its_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"measure\.metrics\.0: no such file"):
        scenarios.load({"workload": {"preset": "chat", "rate": 2, "requests": 5},
                        "measure": {"metrics": [f"{tmp_path}/no.py:M"]}})  # fmt: skip
