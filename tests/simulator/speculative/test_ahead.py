"""Memory ahead of SGLang's drafts, by hand, and what its server does not start."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.policies.sglang import Sglang
from simulator.simulate import simulate_fleet
from simulator.speculative import (
    DrawnAcceptance,
    Speculation,
    SpeculativeConfig,
    check_server,
    most_accepted,
    tokens_ahead,
    verified_tokens,
)
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.laws.scenarios import Memory

TREE: dict[str, Any] = {"eagle_topk": 4, "num_draft_tokens": 8}


@pytest.mark.parametrize(
    ("given", "page_size", "verified", "accepted", "ahead"),
    [
        ({"num_speculative_tokens": 3}, 1, 4, 3, 8),
        ({"num_speculative_tokens": 3}, 64, 4, 3, 8),
        ({"num_speculative_tokens": 5, **TREE}, 1, 8, 5, 40),
        ({"num_speculative_tokens": 5, **TREE}, 16, 8, 5, 256),  # two pages for each of four branches
        ({"num_speculative_tokens": 1, **TREE}, 16, 8, 1, 128),
        ({"num_speculative_tokens": 1, "eagle_topk": 2, "num_draft_tokens": 9}, 1, 9, 1, 18),
        ({"num_speculative_tokens": 5, "eagle_topk": 2, "num_draft_tokens": 3}, 1, 3, 2, 20),
    ],
)
def test_memory_ahead(given: dict[str, Any], page_size: int, verified: int, accepted: int, ahead: int) -> None:
    config = SpeculativeConfig("eagle", **given)
    assert verified_tokens(config) == verified
    assert most_accepted(config) == accepted
    assert tokens_ahead(config, page_size) == ahead


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"method": "eagle", "eagle_topk": 2}, "num_draft_tokens of 2 or more"),
        ({"method": "ngram", **TREE}, "other than ngram"),
        ({"method": "eagle", "num_draft_tokens": 6}, "num_draft_tokens of a chain is 4"),
    ],
)
def test_a_tree_has_a_size(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SpeculativeConfig(num_speculative_tokens=3, **given)


def test_vllm_verifies_no_trees() -> None:
    config = SpeculativeConfig("eagle", 3, **TREE)
    with pytest.raises(ValueError, match=r"eagle_topk is SGLang's"):
        config.check_engine(
            max_num_batched_tokens=64,
            long_prefill_token_threshold=0,
            block_size=16,
            caches_prefixes=False,
            async_scheduling=False,
        )


SERVER: dict[str, Any] = {"mixes": False, "max_num_seqs": 16, "max_num_batched_tokens": 64}


@pytest.mark.parametrize(
    ("given", "server", "what"),
    [
        ({"method": "ngram"}, {"mixes": True}, "method ngram turns enable_mixed_chunk off"),
        ({"method": "draft_model"}, {"mixes": True}, "method draft_model turns enable_mixed_chunk off"),
        ({"method": "eagle"}, {"max_num_seqs": 17}, "steps of up to 68 tokens"),
        ({"method": "eagle", "disable_eagle_block_drop": True}, {}, "disable_eagle_block_drop is vLLM's"),
        (
            {"method": "eagle", "num_speculative_tokens_per_batch_size": [(1, 9, 2)]},
            {},
            "num_speculative_tokens_per_batch_size is vLLM's",
        ),
    ],
)
def test_sglang_does_not_start_it(given: dict[str, Any], server: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_server(SpeculativeConfig(num_speculative_tokens=3, **given), **SERVER | server)


def test_sglang_starts_it() -> None:
    check_server(SpeculativeConfig("eagle", 3), **SERVER | {"mixes": True})
    check_server(SpeculativeConfig("eagle", 0), **SERVER | {"max_num_seqs": 10**6})


class Alike:
    """A common step of a second."""

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return 1.0


def test_ranks_that_share_their_steps_do_not_draft_ahead() -> None:
    made = Sglang(max_num_seqs=4)
    speculation = Speculation(SpeculativeConfig("eagle", 3), DrawnAcceptance([0.5], 0), 1000)
    group = ReplicaGroup(
        lambda: made, Memory(100, 1), Linear(1.0), speculation=speculation, group_cost=Alike(), replicas=2
    )
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    whole = Workload(
        arrival_s=np.zeros(1), input_tokens=one, output_tokens=one, max_tokens=one, priority=none, class_index=none
    )
    with pytest.raises(
        InputError, match="group default: drafts that take memory ahead cannot be combined with data-parallel ranks"
    ):
        simulate_fleet(whole, [group])
