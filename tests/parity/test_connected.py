"""A replica with a KV connector decides as vLLM's own code did, on every step, and each rule is needed for it."""

from collections.abc import Collection, Iterator
from typing import Any

import pytest

from tests.mutations import change
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


OFFLOADING = "simulator.engine.parts.offload"
PULL = "simulator.engine.parts.pull"
COPIER = "simulator.engine.parts.connected_memory"
GROUPS = "simulator.engine.parts.groups"
PART = "simulator.engine.parts.connected"
PLAN = "simulator.policies.chunked_prefill.schedule"
TIER = "simulator.memory.offload"
LRU = "simulator.memory.offload"
ARC = "simulator.memory.offload"
RULES = [
    # O2: what is found
    ("offload", 37, f"{OFFLOADING}:Offloading.look",
     "if offered.jobs:\n            return None", "if offered.jobs:\n            pass"),
    ("offload", 60, f"{OFFLOADING}:_there_in_prefix", "return None if waits else count", "return count"),
    ("offload", 35, f"{OFFLOADING}:look_up",
     "if most - computed < size:\n                return 0\n            if most", "if most"),
    ("offload", 39, f"{OFFLOADING}:Offloading.admitted", "self._loading.update(keys)", "pass"),
    # O3: loads between steps
    ("offload", 56, f"{PLAN}:schedule_waiting", "available - _still_needed(view, connector)", "available"),
    ("pd", 54, f"{PLAN}:schedule_waiting", "available - _still_needed(view, connector)", "available"),
    ("pd", 43, f"{PLAN}:schedule_waiting", "longest_chunk(view, limits, others)", "longest_chunk(view, limits)"),
    # O4: loads that have ended
    ("offload", 42, f"{PART}:Connected._settle", "live.base_computed -= 1  # so that it samples", "pass"),
    # O5: loads within a step
    ("offload", 1, f"{OFFLOADING}:Offloading.before", "return self.copier.wait(sync, ready_s)", "return ready_s"),
    # O6: what is stored
    ("offload", 22, f"{OFFLOADING}:Offloading._offer", "if self._config.offload_prompt_only:", "if False:"),
    ("offload", 42, f"{OFFLOADING}:Offloading.admitted", "part.chunks = cdiv(total, group.chunk)", "pass"),
    ("offload", 49, f"{OFFLOADING}:Offloading.ended", "max(live.input_tokens, live.num_tokens - 1)", "live.num_tokens"),
    ("offload", 39, f"{TIER}:HostTier.store", "self._offers.get(key, 0) >= self._threshold", "True"),
    ("offload", 22, f"{TIER}:HostTier.store", "self._policy.evict(lacking, keys)", "self._policy.evict(lacking, ())"),
    # O7: what is evicted
    ("offload", 42, f"{LRU}:Lru.ended", "(self._next(), 0, 0)", "self._ranks[key]"),
    ("offload", 60, f"{LRU}:Lru._rank", "return access.rank, -tokens, group", "return access.rank, tokens, group"),
    ("offload", 18, f"{ARC}:Arc.ended", "if key in access.reused:", "if True:"),
    ("offload", 24, f"{ARC}:Arc.evict", "size >= int(self._target)", "True"),
    # O8: times, and blocks that a store reads
    ("offload", 37, f"{OFFLOADING}:Offloading.before",
     "(*self._unsubmitted, *at_once)", "(*at_once, *self._unsubmitted)"),
    ("offload", 42, f"{OFFLOADING}:Offloading.planned", "self._flushed |= self._fences[block]", "pass"),
    ("offload", 1, f"{OFFLOADING}:Offloading.planned",
     "self._flushed |= self._requests[live.row].jobs - set(self._loads)", "pass"),
    ("offload", 1, f"{COPIER}:Copier.submit", "busy_until_s, self._last_s[kind]", "busy_until_s"),
    # O2, O6, O8 of several KV groups: what is needed and kept of windows, and whose blocks come free meanwhile
    ("offload", 59, f"{OFFLOADING}:look_up", "num_tokens - 1 if groups.windows else num_tokens", "num_tokens"),
    ("offload", 32, f"{OFFLOADING}:_there_in_window", "if run == needed:", "if run >= 1:"),
    ("offload", 20, f"{OFFLOADING}:_there_in_window", "return None if waits else run", "return 0"),
    ("offload", 13, f"{OFFLOADING}:_group", "cdiv(reach, cache.block_size * chunk_blocks)", "int(reach > 0)"),
    ("offload", 43, f"{OFFLOADING}:offer_of", "if offered.junction else [prompt - 1]", "if False else [prompt - 1]"),
    ("offload", 43, f"{OFFLOADING}:offer_of", "own if kept is None else kept.intersection(own)", "own"),
    ("offload", 48, f"{OFFLOADING}:offer_of", "all(part.blocks[place] != NULL for place in tails)", "True"),
    ("offload", 43, f"{OFFLOADING}:OffloadGroups.__init__",
     "chunks.pop() if len(chunks) == 1 else 0", "self.hash_size"),
    ("offload", 33, f"{OFFLOADING}:Offloading._lost", "part.blocks[at] = NULL", "pass"),
    ("offload", 30, f"{OFFLOADING}:Offloading._offer", "self._fence(job, fenced)", "pass"),
    ("offload", 33, f"{OFFLOADING}:Offloading._offer",
     "max(part.chunks, offered.storable(group, num_tokens))", "part.chunks"),
    ("offload", 54, f"{PLAN}:_still_needed", "sum([view.groups.blocks_lacking(request) for request in requests])", "0"),
    ("offload", 54, f"{PLAN}:itemized_step", "fenced = run.fenced or None", "fenced = None"),
    ("offload", 43, f"{PLAN}:schedule_waiting", "groups.blocks_needed(request, 0, loaded, whole=True)", "0"),
    ("offload", 25, f"{GROUPS}:GroupMemory.ends", "self.drop(live)", "pass"),
    # O10, D1 to D3
    ("offload", 60, f"{PART}:Holding.is_fenced", "self._connector.is_fenced and isinstance", "False and isinstance"),
    ("pd", 54, f"{PULL}:Pull.__init__", "overlaps and consumes", "False"),
    ("pd", 56, f"{PULL}:Pull.__init__", 'config.kv_load_failure_policy == "fail"', "False"),
    ("pd", 30, f"{PULL}:Pull.admitted",
     "remote = self._remotes.pop(request.row, None)", "remote = self._remotes.get(request.row)"),
    ("pd", 41, f"{PULL}:Pull.look", "if remote.known_s > self.now_s:", "if False:"),
    ("pd", 41, f"{PULL}:Pull._transfer", "max(from_s, self._link_s)", "from_s"),
    ("pd", 41, f"{PULL}:Pull.keeps", 'self._config.role != "prefill" or', "True or"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "seed", "place", "old", "new"), RULES)
def test_each_rule_is_needed(
    kind: str, seed: int, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert next(differences(kind, [seed]), None) is not None
