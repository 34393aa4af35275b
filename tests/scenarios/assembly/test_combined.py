"""Pairs of a server's parts: `simulator.goes_with` refuses each with both keys, or a scenario with both is built.

The table is also the only place that refuses a pair, and docs/not-modelled.md is written from it.
"""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import scenarios
from docs.writers.refused_pairs import markdown
from scenarios.assembly.fleet_parts import build_fleet, build_router
from simulator import goes_with
from simulator.errors import InputError
from simulator.goes_with import REFUSED, Part

ROOT = Path(__file__).parents[3]
LENGTH = {"dist": "fixed", "value": 30}
BASE: dict[str, Any] = {
    "model": {"base": "mixtral-8x7b", "max_model_len": 4000, "encoder_parameters": 6e8},
    "hardware": {"gpu": "h200", "num_gpu_blocks": 3000},
    "cost": {"kind": "roofline"},
    "workload": {"requests": 2, "arrival": {"process": "poisson", "rate": 1},
                 "classes": [{"name": "a", "input": LENGTH, "output": LENGTH}]},
    "engine": {"policy": "vllm", "disable_hybrid_kv_cache_manager": True},
    "fleet": [{"name": "a", "replicas": 2}],
}  # fmt: skip
HALVES = "fleet=[{name: a, replicas: 2, role: prefill}, {name: b, replicas: 2, role: decode}]"
OFFLOADED = ("engine.enable_prefix_caching=true", "hardware.kv_offload.host_gib=4")
SCALED = "{min_replicas: 2, max_replicas: 3, targets: {num_requests_waiting: 5}}"
PARTS: dict[str, tuple[set[Part], tuple[str, ...]]] = {
    "drafts": ({goes_with.DRAFTS},
               ("engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance: {mean_length: 2}}",)),
    "adapters": ({goes_with.ADAPTERS}, ("engine.max_loras=2",)),
    "images": ({goes_with.IMAGES}, ("engine.max_image_embeddings=300",)),
    "cadence": ({goes_with.CADENCE}, ("engine.prefill_schedule_interval=4",)),
    "order": ({goes_with.OTHER_ORDER}, ("engine.order=sjf",)),
    "cache": ({goes_with.PREFIX_CACHE}, ("engine.enable_prefix_caching=true",)),
    "caps": ({goes_with.SERVER_CAPS, goes_with.TOKEN_CAP}, ("engine.max_num_queued_tokens=900",)),
    "groups": ({goes_with.KV_GROUPS}, ("model.base=gpt-oss-20b", "engine.disable_hybrid_kv_cache_manager=false")),
    "swap": ({goes_with.SWAP_SPACE}, ("hardware.swap_space_gib=1",)),
    "pipeline": ({goes_with.PIPELINE}, ("hardware.pipeline_parallel=2",)),
    "ranks": ({goes_with.RANKS}, ("hardware.enable_expert_parallel=true",)),
    "offload": ({goes_with.OFFLOAD, goes_with.PREFIX_CACHE}, OFFLOADED),
    "tiers": ({goes_with.OFFLOAD, goes_with.TIERS, goes_with.PREFIX_CACHE},
              (*OFFLOADED, "hardware.kv_offload.tiers=[{type: fs}]")),
    "threshold": ({goes_with.OFFLOAD, goes_with.THRESHOLD, goes_with.PREFIX_CACHE},
                  (*OFFLOADED, "hardware.kv_offload.store_threshold=2")),
    "apart": ({goes_with.APART, goes_with.PREFILL, goes_with.DECODE_SENT},
              (HALVES, "kv_transfer={bandwidth_gb_s: 50}")),
    "pull": ({goes_with.APART, goes_with.DECODE, goes_with.PULL}, (HALVES, "kv_transfer={connector: nixl}")),
    "scaled": ({goes_with.AUTOSCALING}, (f"fleet.0.autoscaling={SCALED}",)),
    "servers": ({goes_with.API_SERVERS, goes_with.WHOLE_REQUESTS}, ("router={kind: vllm_dp, api_server_count: 2}",)),
    "follows": ({goes_with.WHOLE_REQUESTS}, ("router={kind: vllm_dp}",)),
}  # fmt: skip
"""Parts that a server of vLLM's can have, and what brings each."""


def all_refused(parts: set[Part]) -> list[goes_with.Refused]:
    """Every row about these parts."""
    found = (goes_with.refused(pair) for pair in combinations(parts, 2))
    return [row for row in found if row is not None]


def built(scenario: scenarios.Scenario) -> None:
    """Build all of a scenario's servers."""
    build_fleet(scenario)
    build_router(scenario)


@pytest.mark.parametrize(("one", "other"), list(combinations(PARTS, 2)))
def test_a_pair_is_refused_with_both_keys_or_built(one: str, other: str) -> None:
    told = sorted({*PARTS[one][1], *PARTS[other][1]}, key=lambda text: not text.startswith("fleet="))
    if {one, other} in ({"apart", "pull"}, {"servers", "follows"}):
        return  # two values of one key
    if other in ("servers", "follows") and one != "ranks":
        told.append("hardware.enable_expert_parallel=false")
    scenario = scenarios.load(BASE, told)
    parts = PARTS[one][0] | PARTS[other][0]
    rows = all_refused(parts)
    if goes_with.PULL in parts:  # the other group prefills
        rows += all_refused(parts - {goes_with.PULL, goes_with.DECODE} | {goes_with.PREFILL})
    if not rows:
        built(scenario)
        return
    with pytest.raises(InputError) as error:
        built(scenario)
    fitting = [row for row in rows if row.message in error.value.message or row.in_names in error.value.message]
    assert fitting, error.value
    for part in fitting[0][:2] if {one, other} != {"groups", "pipeline"} else ():  # there the model is named
        assert part.key.rpartition(".")[2] in str(error.value)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.first.words}, {row.second.words}")
def test_a_row_names_both_keys_and_stands_once(row: goes_with.Refused) -> None:
    for part in (row.first, row.second):
        assert part.key in row.hint
    assert goes_with.refused((row.second, row.first)) == row
    assert goes_with.between(row.second, row.first).error("group a").message == f"group a: {row.message}"


def test_what_is_refused_of_a_part_is_refused_of_its_kinds() -> None:
    found = goes_with.refused((goes_with.PIPELINE, goes_with.DRAFTS_AHEAD, goes_with.DRAFTS))
    assert found is not None
    assert found.message.startswith("drafts that take memory ahead cannot be combined with a pipeline")
    goes_with.check((goes_with.DRAFTS, goes_with.ADAPTERS, goes_with.RANKS), "group a")


SAID = re.compile(r"(not put (together|beside)|\b(do|does|goes?|go) (not go |neither |with no other )"
                  r"|cannot be combined|not modelled beside|runs no pipeline|speculatively here)")  # fmt: skip
OTHERWISE = re.compile(r'"""|block_size')  # docstrings, and blocks that are no multiple of others
OF_REPLICAS = {
    "simulator/engine/itemized.py",
    "simulator/engine/parts/groups.py",
    "simulator/engine/parts/pipeline.py",
    "simulator/engine/parts/tiers.py",
}
"""What a replica refuses that is made without a fleet."""


def test_no_other_place_refuses_a_pair() -> None:
    found = set()
    for room in ("simulator", "scenarios"):
        for path in (ROOT / room).rglob("*.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            if any(SAID.search(line) for line in lines if '"' in line and not OTHERWISE.search(line)):
                found.add(path.relative_to(ROOT).as_posix())
    assert "simulator/goes_with.py" in found
    assert found - {"simulator/goes_with.py"} <= OF_REPLICAS


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "not-modelled.md").read_text(encoding="utf-8")
    assert f"\n{markdown()}\n" in page, "write it again: make pages PAGES=not-modelled"
