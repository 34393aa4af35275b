"""What a method of speculative decoding fixes, and what vLLM does not start."""

from typing import Any

import numpy as np
import pytest

from simulator.fleet.group import ReplicaGroup
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.simulate import simulate_fleet
from simulator.speculative import DrawnAcceptance, Speculation, SpeculativeConfig
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.parity.cases import Memory

ENGINE: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "long_prefill_token_threshold": 0,
    "block_size": 16,
    "caches_prefixes": True,
    "async_scheduling": False,
}


@pytest.mark.parametrize(
    ("given", "lookahead", "slots", "tail"),
    [
        ({"method": "ngram"}, 0, 0, 0),
        ({"method": "draft_model"}, 4, 1, 0),
        ({"method": "draft_model", "parallel_drafting": True, "model_runner": "v1"}, 4, 4, 0),
        ({"method": "eagle"}, 4, 0, 1),
        ({"method": "eagle3"}, 4, 0, 1),
        ({"method": "mtp"}, 4, 0, 1),
        ({"method": "mtp", "num_nextn_predict_layers": 2}, 4, 0, 4),
    ],
)
def test_a_method_fixes_blocks_slots_and_tail(given: dict[str, Any], lookahead: int, slots: int, tail: int) -> None:
    config = SpeculativeConfig(num_speculative_tokens=4, **given)
    found = config.num_lookahead_tokens, config.draft_slots, config.num_prefill_lookahead_tokens
    assert found == (lookahead, slots, tail)


def test_the_hash_looks_ahead_or_a_block_is_dropped_or_neither() -> None:
    plain, dropping, neither = [
        SpeculativeConfig("eagle", 2, disable_lookahead_block_hashes=plain, disable_eagle_block_drop=kept)
        for plain, kept in ((False, False), (True, False), (False, True))
    ]
    found = [(config.num_hash_lookahead_tokens, config.drops_hit_block) for config in (plain, dropping, neither)]
    assert found == [(1, False), (0, True), (0, False)]


def test_gaps_and_the_end_keep_the_drafts_before() -> None:
    config = SpeculativeConfig("ngram", 3, [(4, 5, 1), (1, 2, 9)])
    assert [config.drafts_of(requests) for requests in (1, 2, 3, 4, 5, 6, 100)] == [3, 3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "medusa"}, "method must be"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be"),
        ({"method": "mtp", "num_nextn_predict_layers": 2, "num_speculative_tokens": 3}, "a multiple of the 2 MTP"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is for method mtp"),
        ({"parallel_drafting": True}, "parallel_drafting is for method draft_model"),
        ({"method": "draft_model", "parallel_drafting": True}, "parallel_drafting needs model_runner v1"),
        ({"disable_eagle_block_drop": True}, "disable_eagle_block_drop is for the methods eagle"),
        ({"num_speculative_tokens_per_batch_size": [(2, 3, 1)]}, "must begin at batch size 1"),
        ({"num_speculative_tokens_per_batch_size": [(1, 3, 1), (3, 4, 1)]}, "overlap"),
        ({"num_speculative_tokens_per_batch_size": [(1, 3)]}, "must have entries"),
        ({"num_speculative_tokens_per_batch_size": [(3, 1, 1)]}, "1 <= first <= last"),
    ],
)
def test_what_vllm_does_not_start_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SpeculativeConfig(**{"method": "ngram", "num_speculative_tokens": 3, **given})


@pytest.mark.parametrize(
    ("given", "engine", "words"),
    [
        ({"model_runner": "v1"}, {"async_scheduling": True}, "needs model_runner v2"),
        ({"method": "eagle"}, {"max_num_batched_tokens": 4}, "at least 5 with 4 drafts"),
        ({}, {"long_prefill_token_threshold": 4}, "must be 0 or at least 5"),
        ({"method": "mtp", "num_nextn_predict_layers": 4}, {"block_size": 2}, "block_size must be at least"),
        ({"method": "mtp", "num_nextn_predict_layers": 4}, {"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
    ],
)
def test_an_engine_that_would_fail_is_refused(given: dict[str, Any], engine: dict[str, Any], words: str) -> None:
    config = SpeculativeConfig(**{"method": "ngram", "num_speculative_tokens": 4, **given})
    config.check_engine(**ENGINE)
    with pytest.raises(ValueError, match=words):
        config.check_engine(**{**ENGINE, **engine})


def test_no_drafts_go_with_every_engine() -> None:
    config = SpeculativeConfig("eagle", 0)
    config.check_engine(**{**ENGINE, "max_num_batched_tokens": 1})


def test_ranks_draft_alike_and_a_server_that_moves_kv_hashes_blocks_alone() -> None:
    by_batch = SpeculativeConfig("eagle", 3, [(1, 4, 3), (5, 9, 1)])
    assert (by_batch.drafts_of(6), by_batch.in_ranks().drafts_of(6)) == (1, 3)
    assert (by_batch.num_hash_lookahead_tokens, by_batch.drops_hit_block) == (1, False)
    moves = by_batch.with_transfers()
    assert (moves.num_hash_lookahead_tokens, moves.drops_hit_block) == (0, True)
    assert SpeculativeConfig("ngram", 3).with_transfers() == SpeculativeConfig("ngram", 3)


@pytest.mark.parametrize(("router", "drafts"), [("vllm_dp", 3), ("round_robin", 1)])
def test_replicas_of_one_server_are_ranks(router: str, drafts: int) -> None:
    """Two requests at once on each of two replicas: by batch size a step drafts once for each, in ranks three times."""
    config = SpeculativeConfig("ngram", 3, [(1, 1, 3), (2, 9, 1)])
    group = ReplicaGroup(
        lambda: ChunkedPrefill(max_num_seqs=4),
        Memory(100, 16),
        Linear(0.01),
        replicas=2,
        speculation=Speculation(config, DrawnAcceptance([0.0, 0.0, 0.0], 1), 1000),
    )
    four = np.full(4, 20)
    whole = Workload(np.zeros(4), four, four, four, np.zeros(4, dtype=int), np.zeros(4, dtype=int))
    steps = simulate_fleet(whole, [group], router=router, log_decisions=True).decisions
    assert steps is not None
    assert {step["next_k"] for step in steps if len(step["scheduled"]) == 2} == {drafts}
