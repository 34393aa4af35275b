"""Labels say in what runs differ, by the shortest names, in the order of the values."""

from copy import deepcopy
from typing import Any

from scenarios.runs.variants import arrange

BASE: dict[str, Any] = {
    "name": "day",
    "seed": 0,
    "hardware": {"gpu": "h200"},
    "cost": {"kind": "roofline"},
    "workload": {
        "classes": [
            {"name": "chat", "arrival": {"process": "poisson", "rate": 2.0}},
            {"name": "batch", "arrival": {"process": "poisson", "rate": 1.0}},
        ]
    },
    "engine": {"policy": "chunked_prefill", "max_num_seqs": 256, "order": "fcfs"},
}


def run(**changes: Any) -> dict[str, Any]:
    data = deepcopy(BASE)
    for path, value in changes.items():
        holder: Any = data
        *outer, last = path.split("__")
        for key in outer:
            holder = holder[int(key)] if key.isdigit() else holder[key]
        holder[last] = value
    return data


def texts(*runs: dict[str, Any], stated: Any = None) -> list[str]:
    return [label.text for label in arrange(runs, stated)]


def test_one_run_is_called_by_its_policy() -> None:
    assert texts(run()) == ["chunked_prefill"]


def test_policies_are_called_by_their_names() -> None:
    runs = run(engine__policy="static"), run()
    assert texts(*runs) == ["static", "chunked_prefill"]


def test_settings_of_one_policy_in_numeric_order() -> None:
    runs = [run(engine__max_num_seqs=value) for value in (1024, 64, 256)]
    assert texts(*runs) == ["max_num_seqs=64", "max_num_seqs=256", "max_num_seqs=1024"]
    assert [label.place for label in arrange(runs)] == [1, 2, 0]


def test_settings_beside_another_policy_have_the_policy_in_front() -> None:
    runs = run(), run(engine__policy="static"), run(engine__max_num_seqs=64)
    assert texts(*runs) == ["chunked_prefill max_num_seqs=64", "chunked_prefill max_num_seqs=256", "static"]


def test_what_policies_have_of_their_own_is_no_difference() -> None:
    static = run(engine={"policy": "static", "batch_timeout_s": 0.1, "max_num_seqs": 256})
    assert texts(static, run()) == ["static", "chunked_prefill"]


def test_what_differs_outside_of_the_engine_is_said_of_every_run() -> None:
    runs = run(engine__policy="static"), run(hardware__gpu="h100")
    assert texts(*runs) == ["static gpu=h200", "chunked_prefill gpu=h100"]


def test_names_of_keys_are_as_short_as_they_can_be() -> None:
    rates = run(workload__classes__0__arrival__rate=4.5), run()
    assert texts(*rates) == ["chat.arrival.rate=2", "chat.arrival.rate=4.5"]
    assert texts(run(cost__kind="linear"), run()) == ["cost.kind=linear", "cost.kind=roofline"]


def test_keys_that_come_with_another_kind_are_left_out() -> None:
    linear = run(cost={"kind": "linear", "base_s": 0.005})
    assert texts(linear, run()) == ["cost.kind=linear", "cost.kind=roofline"]


def test_other_scenarios_are_called_by_their_names() -> None:
    assert texts(run(name="night"), run()) == ["night", "day"]
    assert texts(run(name="night"), run(), run(engine__policy="static")) == [
        "night, chunked_prefill", "day, chunked_prefill", "day, static",
    ]  # fmt: skip


def test_equal_runs_have_equal_labels() -> None:
    assert texts(run(), run()) == ["chunked_prefill", "chunked_prefill"]


def test_many_differences_are_cut() -> None:
    other = run(seed=1, hardware__gpu="h100", cost__kind="linear", engine__max_num_seqs=3)
    assert texts(run(), other)[0].count("=") == 3
    assert texts(run(), other)[0].endswith(", …")


def test_of_several_keys_those_that_were_chosen_are_named() -> None:
    runs = run(), run(engine__max_num_seqs=64), run(engine__max_num_seqs=64, engine__order="sjf")
    stated = [(), ("max_num_seqs",), ("max_num_seqs", "order")]
    assert texts(*runs, stated=stated) == ["max_num_seqs=64", "max_num_seqs=64, order=sjf", "chunked_prefill"]


def test_one_setting_is_said_of_the_run_without_it_too() -> None:
    runs = run(), run(engine__max_num_seqs=64)
    assert texts(*runs, stated=[(), ("max_num_seqs",)]) == ["max_num_seqs=64", "max_num_seqs=256"]


def test_a_setting_of_a_policy_that_stands_alone_is_said() -> None:
    runs = run(engine__policy="static", engine__max_num_seqs=8), run()
    assert texts(*runs, stated=[("max_num_seqs",), ()]) == ["static max_num_seqs=8", "chunked_prefill"]


def test_paths_are_called_by_their_files() -> None:
    runs = [run(workload={"trace": {"path": f"/data/{name}.csv"}}) for name in "ab"]
    assert texts(*runs) == ["trace.path=a.csv", "trace.path=b.csv"]
    same = [run(workload={"trace": {"path": f"/{name}/x.csv"}}) for name in "ab"]
    assert texts(*same) == ["trace.path=/a/x.csv", "trace.path=/b/x.csv"]


def test_classes_of_one_name_in_two_files_are_numbered() -> None:
    runs = [run(engine={"policy": f"/{folder}/p.py:Mine", "max_num_seqs": 4}) for folder in "ab"]
    assert texts(*runs) == ["Mine", "Mine-2"]


def test_scenarios_of_other_names_are_told_apart_by_their_names_alone() -> None:
    runs = run(name="one", seed=1), run(name="two", seed=2), run(name="two", seed=3)
    assert texts(*runs) == ["one", "two seed=2", "two seed=3"]
