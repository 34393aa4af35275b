"""A replica with a KV connector decides as vLLM's own code did, on every step, and each rule is needed for it."""

from collections.abc import Collection, Iterator
from itertools import product
from typing import Any

import pytest

from simulator.engine.parts import connected, offload
from simulator.memory.offload import tier
from simulator.policies import chunked_prefill
from tests.parity import connected_features as features
from tests.parity import held
from tests.parity.test_features import recorded

COMPARED = (*held.COLUMNS, "external", "loading", "evicted", "sent", "received")


def differences(kind: str, seeds: Collection[int]) -> Iterator[str]:
    """The recorded cases with these seeds that are decided otherwise, by the columns that were recorded."""

    def difference(item: dict[str, Any]) -> str | None:
        ours = features.CONNECTED[kind](item["case"])
        return held.first_difference(ours, item["records"], lambda _, b: [key for key in COMPARED if key in b])

    return held.differences([item for item in recorded(kind) if item["seed"] in seeds], difference)


@pytest.mark.parametrize("kind", features.CONNECTED)
def test_recorded_cases_are_decided_as_vllm_did(kind: str) -> None:
    assert len(recorded(kind)) == 60
    assert list(differences(kind, range(1, 60, 4))) == []


OFFLOADING, PULL, COPIER = "engine.connector.offloading", "engine.connector.pull", "engine.connector.copier"
LOOKUP, OFFERED, BLOCKS = "engine.connector.lookup", "engine.connector.offered", "engine.connector.groups"
PLANS, RESULTS, PLAN = "engine.connector.plans", "engine.connector.results", "policies.chunked_prefill.connected"
TIER, LRU, ARC = "memory.offload.tier", "memory.offload.lru", "memory.offload.arc"
RULES = [
    # O2: what is found
    ("offload", 37, OFFLOADING, "if offered.jobs:\n            return None", "if offered.jobs:\n            pass"),
    ("offload", 60, LOOKUP, "return None if waits else count", "return count"),
    ("offload", 35, LOOKUP, "if most - computed < size:\n                return 0\n            if most", "if most"),
    ("offload", 39, OFFLOADING, "self._loading.update(keys)", "pass"),
    # O3: loads between steps
    ("offload", 56, PLAN, "_still_needed(view, connector) if later else 0", "0"),
    ("pd", 54, PLAN, "available - reserved", "available"),
    ("pd", 43, PLAN, "len(connector.holding))", "0)"),
    # O4: loads that have ended
    ("offload", 42, PLANS, "live.base_computed -= 1  # so that it samples", "pass"),
    # O5: loads within a step
    ("offload", 1, OFFLOADING, "return self.copier.wait(sync, ready_s)", "return ready_s"),
    # O6: what is stored
    ("offload", 22, OFFLOADING, "if self._config.offload_prompt_only:", "if False:"),
    ("offload", 42, OFFLOADING, "part.chunks = cdiv(total, group.chunk)", "pass"),
    ("offload", 49, OFFLOADING, "max(live.input_tokens, live.num_tokens - 1)", "live.num_tokens"),
    ("offload", 39, TIER, "self._offers.get(key, 0) >= self._threshold", "True"),
    ("offload", 22, TIER, "self._policy.evict(lacking, keys)", "self._policy.evict(lacking, ())"),
    # O7: what is evicted
    ("offload", 42, LRU, "(self._next(), 0, 0)", "self._ranks[key]"),
    ("offload", 60, LRU, "return access.rank, -tokens, group", "return access.rank, tokens, group"),
    ("offload", 18, ARC, "if key in access.reused:", "if True:"),
    ("offload", 24, ARC, "size >= int(self._target)", "True"),
    # O8: times, and blocks that a store reads
    ("offload", 37, OFFLOADING, "(*self._unsubmitted, *at_once)", "(*at_once, *self._unsubmitted)"),
    ("offload", 42, OFFLOADING, "self._flushed |= self._fences[block]", "pass"),
    ("offload", 1, OFFLOADING, "self._flushed |= self._requests[live.row].jobs - set(self._loads)", "pass"),
    ("offload", 1, COPIER, "busy_until_s, self._last_s[kind]", "busy_until_s"),
    # O2, O6, O8 of several KV groups: what is needed and kept of windows, and whose blocks come free meanwhile
    ("offload", 59, LOOKUP, "num_tokens - 1 if groups.windows else num_tokens", "num_tokens"),
    ("offload", 32, LOOKUP, "if run == needed:", "if run >= 1:"),
    ("offload", 20, LOOKUP, "return None if waits else run", "return 0"),
    ("offload", 13, OFFERED, "cdiv(reach, cache.block_size * chunk_blocks)", "int(reach > 0)"),
    ("offload", 43, OFFERED, "if offered.junction else [prompt - 1]", "if False else [prompt - 1]"),
    ("offload", 43, OFFERED, "own if kept is None else kept.intersection(own)", "own"),
    ("offload", 48, OFFERED, "all(part.blocks[place] != NULL for place in tails)", "True"),
    ("offload", 43, OFFERED, "chunks.pop() if len(chunks) == 1 else 0", "self.hash_size"),
    ("offload", 33, OFFLOADING, "part.blocks[at] = NULL", "pass"),
    ("offload", 30, OFFLOADING, "self._fence(job, fenced)", "pass"),
    ("offload", 33, OFFLOADING, "max(part.chunks, offered.storable(group, num_tokens))", "part.chunks"),
    ("offload", 54, PLAN, "sum([view.groups.blocks_lacking(request) for request in requests])", "0"),
    ("offload", 54, PLAN, "tried=left.fenced or None", "tried=None"),
    ("offload", 43, PLAN, "view.groups.blocks_needed(request, 0, loaded, whole=True)", "0"),
    ("offload", 25, BLOCKS, "self.drop(live.row, max(0, live.base_computed - live.in_flight_tokens))", "pass"),
    # O10, D1 to D3
    ("offload", 60, PLANS, "self._connector.is_fenced and isinstance", "False and isinstance"),
    ("pd", 54, PULL, "overlaps and consumes", "False"),
    ("pd", 56, PULL, 'config.kv_load_failure_policy == "fail"', "False"),
    ("pd", 30, PULL, "remote = self._remotes.pop(request.row, None)", "remote = self._remotes.get(request.row)"),
    ("pd", 41, PULL, "if remote.known_s > self.now_s:", "if False:"),
    ("pd", 41, PULL, "max(from_s, self._link_s)", "from_s"),
    ("pd", 41, PULL, 'self._config.role != "prefill" or', "True or"),
]  # fmt: skip

# Where each module's parts are taken from.
PARTS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    OFFLOADING: ((features,), ("Offloading",)),
    LOOKUP: ((offload,), ("look_up",)),
    OFFERED: ((offload,), ("Offered", "OffloadGroups", "Part", "blocks_of", "offer_of")),
    BLOCKS: ((features, connected, offload, offload), ("ConnectedGroups",)),
    PULL: ((features,), ("Pull",)),
    COPIER: ((offload,), ("Copier",)),
    PLANS: ((connected,), ("ConnectedPlans", "Holding")),
    RESULTS: ((connected,), ("ConnectedResults",)),
    PLAN: ((chunked_prefill,), ("connected_step",)),
    TIER: ((offload,), ("HostTier",)),
    LRU: ((tier,), ("Lru",)),
    ARC: ((tier,), ("Arc",)),
}


@pytest.mark.parametrize(("kind", "seed", "module", "old", "new"), RULES)
def test_each_rule_is_needed(
    kind: str, seed: int, module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.change_rule(monkeypatch, module, old, new, product(*PARTS[module]))
    assert next(differences(kind, [seed]), None) is not None
