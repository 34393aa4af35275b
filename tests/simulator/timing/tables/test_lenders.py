"""Parts that tables lack come from other tables of the same GPU, and say so."""

from dataclasses import replace

import pytest

from scenarios.profiles import shipped_tables, tables_for
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, ProfileCost
from simulator.timing.tables import Tables, compose, parts_of, read_tables
from simulator.timing.tables.table_schema import BORROWED, with_products

H200 = GPUS["h200"]
LLAMA = MODELS["llama-3.1-8b"]


@pytest.fixture
def own() -> Tables:
    return read_tables(shipped_tables()["h200-vllm-0.24"])


@pytest.fixture
def other() -> Tables:
    return read_tables(shipped_tables()["h200-sglang-0.5"])


@pytest.mark.parametrize(
    ("lacking", "borrowed", "ranks"),
    [
        ({"decode": ()}, {"decode attention", "prompt attention", "prompts beside decodes"}, 1),
        ({"all_reduce": {}}, {"all-reduce among 2"}, 2),
        ({"products": {}}, {"qkv", "output_projection", "gate_up", "down", "lm_head"}, 1),
    ],
)
def test_a_part_is_borrowed_and_no_other(
    own: Tables, other: Tables, lacking: dict[str, object], borrowed: set[str], ranks: int
) -> None:
    less = replace(own, **lacking)  # type: ignore[arg-type] # a dictionary of any of its fields
    with pytest.raises(InputError, match=r"h200-vllm-0\.24 has no"):
        compose(less, LLAMA, H200, ranks)
    parts = {part.name: part for part in parts_of(compose(less, LLAMA, H200, ranks, lenders=(other,)))}
    assert {name for name, part in parts.items() if part.how == BORROWED} == borrowed
    assert all("as under SGLang 0.5.14" in parts[name].words for name in borrowed)


def test_what_nobody_has_is_refused_in_the_words_of_the_own_tables(own: Tables, other: Tables) -> None:
    odd = replace(LLAMA, head_dim=96)
    with pytest.raises(InputError, match=r"h200-vllm-0\.24 has no decode attention for heads of 96"):
        compose(own, odd, H200, 1, lenders=(other,))


def test_products_that_are_there_stay(own: Tables, other: Tables) -> None:
    assert with_products(own, ("bf16", "fp8"), (other,)) is own
    assert with_products(own, ("fp8_block",), (other,)).products["bf16"] is own.products["bf16"]


def test_the_tables_of_an_engine_come_first_and_the_nearest_version_before() -> None:
    own, others = tables_for("h100", "vllm", "0.18")
    assert [path.name for path in own] == ["h100-vllm-0.19.json.gz", "h100-vllm-0.24.json.gz"]
    assert {path.name for path in others} == {"h100-sglang-0.5.json.gz", "h100-trtllm-1.3.json.gz"}
    assert tables_for("h100", "vllm")[0] == own[::-1]
    assert [path.name for path in tables_for("l40s", "sglang")[0]] == ["l40s-vllm-0.24.json.gz"]
    assert tables_for("mi300x", "vllm") == ([], [])


@pytest.mark.parametrize("name", [name for name in shipped_tables() if "-vllm-" not in name])
def test_tables_of_other_engines_price_a_model_within_a_factor_of_two_of_vllm(name: str) -> None:
    """A mistaken unit, or rows of another kernel, would be farther off."""
    gpu = GPUS[name.rsplit("-", 2)[0]]
    theirs, ours = (
        ProfileCost(compose(read_tables(shipped_tables()[each]), LLAMA, gpu, 1), Options(host_s=0.0))
        for each in (name, f"{gpu.name}-vllm-0.24")
    )
    for step in (StepShape(1, 1000), StepShape(64, 64_000), StepShape(0, 0, 1, 4096, 4096, 4096 * 2048, 0, 0, 4096)):
        assert 0.5 < theirs.step_s(step) / ours.step_s(step) < 2.0
