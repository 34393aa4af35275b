"""vLLM's arguments under `engine:`: taken under their own name, or told where they belong."""

import re

import pytest

from scenarios.schema.engine import DECLARED, ENGINE_KEYS
from scenarios.schema.scenario import Hardware, Scenario
from scenarios.schema.vllm_names import BELONGS, where
from simulator.errors import InputError
from tests.scenarios.schema.test_scenario import scenario

SECTIONS = {"hardware": set(Hardware.model_fields), "engine": {*ENGINE_KEYS, *DECLARED}}


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


def test_models_may_be_told_their_types() -> None:
    """As the hints for dtype and kv_cache_dtype say."""
    half = scenario(model={"base": "llama-3.1-8b", "kv_dtype_bytes": 1}).resolve_model()
    assert half.kv_bytes_per_token() * 2 == scenario().resolve_model().kv_bytes_per_token()
