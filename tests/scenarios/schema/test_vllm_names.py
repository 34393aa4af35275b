"""vLLM's arguments under `engine:`: taken under their own name, or told where they belong."""

import re

import pytest

from scenarios.schema.cost import ProfileCostConfig
from scenarios.schema.declared import DECLARED
from scenarios.schema.engine import BELONGS, ENGINE_KEYS, where
from scenarios.schema.hardware import Hardware
from scenarios.schema.left_out import compared
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from tests.scenarios.schema.test_scenario import scenario

SECTIONS = {
    "hardware": set(Hardware.model_fields),
    "engine": {*ENGINE_KEYS, *DECLARED},
    "cost": set(ProfileCostConfig.model_fields),
}


@pytest.mark.parametrize("argument", BELONGS)
def test_the_error_says_where_an_argument_belongs(argument: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario(engine={argument: 1})
    assert caught.value.message == f"engine.{argument}: unknown key"
    assert caught.value.hint == f"vLLM's {argument} {BELONGS[argument]}"


@pytest.mark.parametrize("argument", BELONGS)
def test_the_place_named_is_there(argument: str) -> None:
    assert argument not in SECTIONS["engine"], "it is taken: no word is needed"
    for section, key in re.findall(r"`(\w+)\.(\w+)`", BELONGS[argument]):
        assert key in SECTIONS[section]
    for key in re.findall(r"the top-level `(\w+)`", BELONGS[argument]):
        assert key in Scenario.model_fields


def test_arguments_as_on_vllms_command_line() -> None:
    assert where("--kv-cache-dtype") == where("kv_cache_dtype")
    assert where("max_num_seqs") is None


def test_what_has_the_same_meaning_has_the_same_name() -> None:
    same = {"max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "enable_chunked_prefill"}
    assert same | {"long_prefill_token_threshold", "async_scheduling"} <= SECTIONS["engine"]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({"quantization": "fp8"}, {"dtype_bytes": 1}),
        ({"quantization": "fp8_block"}, {"dtype_bytes": 1, "matmul_dtype": "fp8_block"}),
        ({"quantization": "nvfp4"}, {"dtype_bytes": 0.5625, "matmul_dtype": "nvfp4"}),
        ({"quantization": "int4"}, {"dtype_bytes": 0.515625, "matmul_dtype": "bf16"}),
        ({"quantization": "none", "kv_cache_dtype": "fp8"}, {"kv_dtype_bytes": 1}),
        ({"kv_cache_dtype": "bfloat16"}, {}),
    ],
)
def test_precisions_in_a_word(words: dict[str, str], fields: dict[str, object]) -> None:
    """As the hints for quantization and kv_cache_dtype say."""
    base = {"base": "llama-3.1-8b"}
    assert scenario(model=base | words).resolve_model() == scenario(model={**base, **fields}).resolve_model()


def test_a_quantization_is_of_all_weights() -> None:
    model = scenario(model={"base": "gpt-oss-20b", "quantization": "fp8"}).resolve_model()
    assert (model.multiplied_in, model.experts_multiplied_in, model.expert_bytes) == ("fp8", "fp8", 1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"quantization": "awq"}, "unknown quantization 'awq'"),
        ({"quantization": "fp8", "dtype_bytes": 1}, "quantization says the precision, as dtype_bytes does"),
        ({"kv_cache_dtype": "fp8", "kv_dtype_bytes": 1}, "kv_cache_dtype says the precision, as kv_dtype_bytes does"),
    ],
)
def test_bad_precisions(model: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(model={"base": "llama-3.1-8b"} | model)


@pytest.mark.parametrize(
    ("written", "release"), [("0.20", "0.20"), (0.2, "0.20"), ("0.20.1", "0.20"), ("v0.11.2", "0.11")]
)
def test_a_version_is_read_as_it_is_written_elsewhere(written: object, release: str) -> None:
    assert scenario(engine={"policy": "vllm", "version": written}).engine.parameter("version") == release


@pytest.mark.parametrize(
    ("policy", "written", "release"),
    [
        ("vllm", "0.9.2", "0.11"), ("vllm", 0.34, "0.33"), ("vllm", "1.0.0", "0.33"), ("vllm", "nightly-5b8c", "0.33"),
        ("sglang", "0.4.6.post1", "0.5"), ("sglang", "0.5.10.post1", "0.5"), ("sglang", "0.20", "0.5"),
        ("tensorrt_llm", "0.17", "1.0"), ("tensorrt_llm", "1.2.0rc6.post3", "1.2"), ("tensorrt_llm", "1.4", "1.3"),
    ],
)  # fmt: skip
def test_the_nearest_known_version_stands_for_another(policy: str, written: object, release: str) -> None:
    found = scenario(engine={"policy": policy, "version": written})
    assert found.engine.parameter("version") == release
    assert found.engine.asked_release == ("" if str(written).startswith(release) else str(written))
    told = compared(found)
    assert told is not None
    assert told.get("unknown") == ({"engine.version": str(written)} if found.engine.asked_release else None)


@pytest.mark.parametrize("written", ["0.201", "20.1", "0.20-1", "0,20"])
def test_another_version_is_refused(written: str) -> None:
    with pytest.raises(InputError, match=f"unknown version '{written}'"):
        scenario(engine={"policy": "vllm", "version": written})
