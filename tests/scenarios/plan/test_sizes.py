"""Tensor parallel beside the GPUs of a plan."""

from scenarios.plan.candidate import space, with_sizes
from scenarios.studies.study import parse_vary
from tests.scenarios.plan.cases import chat

GPU, SIZE = "hardware.gpu", "hardware.tensor_parallel"
LARGE = {"model": "llama-3.1-70b", "hardware": {"gpu": "h100", "tensor_parallel": 4}, "cost": {"kind": "roofline"}}


def test_each_gpu_has_the_sizes_that_fit() -> None:
    found = space(chat(**LARGE), gpus=["h100", "b200"])
    sizes: dict[str, list[int]] = {}
    for candidate in found.candidates:
        sizes.setdefault(str(candidate.settings[GPU]), []).append(int(str(candidate.settings[SIZE])))
    assert sizes == {"h100": [2, 4, 8], "b200": [1, 2, 4]}
    assert not found.refused
    assert any("tensor parallel is varied over what fits (h100 2 4 8, b200 1 2 4)" in note for note in found.notes)
    assert any("held as in the scenario: policy chunked_prefill, max_num_seqs 8" in note for note in found.notes)
    assert found.candidates[-1].label == "b200, TP 4"


def test_what_is_held_stays() -> None:
    held = space(chat(**LARGE), gpus=["h100", "b200"], axes=[parse_vary(f"{SIZE}=4")])
    assert {candidate.settings[SIZE] for candidate in held.candidates} == {4}
    assert not any("tensor parallel is varied" in note for note in held.notes)
    linear = chat()
    assert with_sizes(linear, [{GPU: "h100"}]) == ([{GPU: "h100"}], []), "a linear cost knows no GPU"
    alone = chat(**LARGE)
    assert with_sizes(alone, [{"engine.max_num_seqs": 4}]) == ([{"engine.max_num_seqs": 4}], [])


def test_the_scenarios_own_size_is_tried_though_it_be_large() -> None:
    small = chat(hardware={"gpu": "h100", "tensor_parallel": 8}, cost={"kind": "roofline"})
    found, _ = with_sizes(small, [{GPU: "h100"}])
    assert [setting[SIZE] for setting in found] == [1, 2, 4, 8]
