"""Which parts of a server cannot be combined: one table, a row a pair.

Fleets, scenarios, policies and the writer of docs/not-modelled.md ask it. Two parts without a row run together.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from simulator.errors import InputError


class Part(NamedTuple):
    """A part that a server can have, and the setting that brings it.

    `words` are what errors and pages call it; `key` is the scenario's; `without` is how to leave it out. Rows about
    `is_a` hold for it too: what cannot be combined with drafts cannot be combined with drafts ahead.
    """

    words: str
    key: str
    without: str
    is_a: Part | None = None

    @property
    def kinds(self) -> tuple[Part, ...]:
        """The part, and what it is, from the special to the general."""
        return (self,) if self.is_a is None else (self, *self.is_a.kinds)


def _leave_out(words: str, key: str, is_a: Part | None = None) -> Part:
    """A part that is there where its key is."""
    return Part(words, key, f"no {key}", is_a)


class Refused(NamedTuple):
    """Two parts that cannot be combined, and the reason. Errors stand at the key of the `first`."""

    first: Part
    second: Part
    why: str

    @property
    def message(self) -> str:
        """What is wrong, in words."""
        return f"{self.first.words} cannot be combined with {self.second.words}: {self.why}"

    @property
    def in_names(self) -> str:
        """The same by the names of parameters, as a policy says it."""
        first, second = (part.key.rpartition(".")[2] for part in (self.first, self.second))
        return f"{first} cannot be combined with {second}: {self.why}"

    @property
    def hint(self) -> str:
        """What takes either of the two away; it names both keys."""
        return f"{self.first.without}; or {self.second.without}"

    def error(self, whose: str) -> InputError:
        """The refusal of what `whose` names: a group, a replica."""
        return InputError(f"{whose}: {self.message}", hint=self.hint)


# ------------------------------------------------------------------------------------------------------- parts

DRAFTS = _leave_out("drafts", "engine.speculative_config")
DRAFTS_AHEAD = DRAFTS._replace(words="drafts that take memory ahead", is_a=DRAFTS)
SEVERAL_MODULES = DRAFTS._replace(words="drafts by several MTP modules", is_a=DRAFTS)
OWN_HASHES = Part(
    "hashes of blocks that do not look ahead",
    "engine.speculative_config.disable_lookahead_block_hashes",
    "engine.speculative_config.disable_lookahead_block_hashes: false",
)
ADAPTERS = _leave_out("LoRA adapters", "engine.max_loras")
DRAFTED_ADAPTERS = ADAPTERS._replace(words="LoRA adapters together with drafts", is_a=ADAPTERS)
IMAGES = _leave_out("images", "engine.max_image_embeddings")
SESSIONS = _leave_out("sessions", "session")
CADENCE = Part("a cadence of prompts", "engine.prefill_schedule_interval", "engine.prefill_schedule_interval: 1")
STEP_ORDER = Part("an order that counts decode steps", "engine.order", "engine.order: fcfs or priority")
OTHER_ORDER = STEP_ORDER._replace(words="other orders than fcfs and priority")
PREFIX_CACHE = Part("a prefix cache", "engine.enable_prefix_caching", "engine.enable_prefix_caching: false")
OTHER_PREEMPTION = Part(
    "other preemption than by recomputing", "engine.preemption_mode", "engine.preemption_mode: recompute"
)
SWAP_OVERLAP = Part("swapping beside a step", "engine.swap_overlap", "engine.swap_overlap: false")
BATCHES = Part("a policy that schedules a batch at a time", "engine.policy", "engine.policy: chunked_prefill")
REAL = Part("a real scheduler", "engine.policy", "engine.policy: vllm or sglang, outside of `batchlab parity`")
REAL_SGLANG = REAL._replace(words="SGLang's own scheduler", is_a=REAL)
SERVER_CAPS = Part(
    "caps on the queue of a server",
    "engine.max_num_queued_reqs",
    "no engine.max_num_queued_reqs and no engine.max_num_queued_tokens",
)
TOKEN_CAP = _leave_out("a cap on queued tokens", "engine.max_num_queued_tokens")
KV_GROUPS = Part(
    "layers that keep different things",
    "engine.disable_hybrid_kv_cache_manager",
    "engine.disable_hybrid_kv_cache_manager: true",
)
STATES = KV_GROUPS._replace(words="layers with a state", is_a=KV_GROUPS)
SWAP_SPACE = Part("swap space", "hardware.swap_space_gib", "hardware.swap_space_gib: 0")
PIPELINE = Part("a pipeline", "hardware.pipeline_parallel", "hardware.pipeline_parallel: 1")
EXPERTS = Part("shared experts", "hardware.enable_expert_parallel", "hardware.enable_expert_parallel: false")
RANKS = EXPERTS._replace(words="data-parallel ranks that step together", is_a=EXPERTS)
CONNECTOR = Part("a KV connector", "hardware.kv_offload", "no hardware.kv_offload and no kv_transfer.connector")
OFFLOAD = _leave_out("KV offload", "hardware.kv_offload", CONNECTOR)
TIERS = _leave_out("tiers of KV below the host", "hardware.kv_offload.tiers")
THRESHOLD = _leave_out("a threshold for stores", "hardware.kv_offload.store_threshold")
PULL = _leave_out("pulled KV", "kv_transfer.connector", CONNECTOR)
APART = _leave_out("prefill and decode apart", "fleet.role")
PREFILL = APART._replace(words="a group that only prefills", is_a=APART)
DECODE = APART._replace(words="a group that only decodes", is_a=APART)
DECODE_SENT = DECODE._replace(words="a group that decodes what it is sent", is_a=DECODE)
AUTOSCALING = _leave_out("autoscaling", "fleet.autoscaling")
WHOLE_REQUESTS = Part("a router that follows whole requests", "router", "router: least_loaded")
CACHE_EVENTS = Part("a router that hears of cached blocks", "router", "router: least_loaded")
API_SERVERS = Part("several API servers", "router.api_server_count", "router.api_server_count: 1")
EXECUTOR = _leave_out("an executor of its own", "make_executor")
DEVICE = EXECUTOR._replace(words="a device", is_a=EXECUTOR)

# -------------------------------------------------------------------------------------------------------- rows

_UNSEEN = "no schedule of vLLM with both has been compared yet"

REFUSED: tuple[Refused, ...] = (
    Refused(DRAFTS, PIPELINE, "a step is planned before the stages have verified the drafts of the one before"),
    Refused(CADENCE, PIPELINE, _UNSEEN),
    Refused(SWAP_SPACE, PIPELINE, "vLLM preempts by recomputing there"),
    Refused(CONNECTOR, PIPELINE, "each stage would copy its own layers at its own time"),
    Refused(EXPERTS, PIPELINE, "the common step of ranks has no stages"),
    Refused(APART, PIPELINE, "the KV of a request moves from one replica as a whole, not stage by stage"),
    Refused(IMAGES, PIPELINE, "the encoder would run on one stage alone"),
    Refused(KV_GROUPS, PIPELINE, "memory is planned for stages with equal layers"),
    Refused(PIPELINE, DEVICE, "the device computes whole steps"),
    Refused(CONNECTOR, DRAFTS, _UNSEEN),
    Refused(CONNECTOR, CADENCE, _UNSEEN),
    Refused(CONNECTOR, ADAPTERS, _UNSEEN),
    Refused(CONNECTOR, IMAGES, _UNSEEN),
    Refused(OFFLOAD, EXPERTS, "each rank would offload the KV of experts that all share"),
    Refused(CONNECTOR, RANKS, "its copies end between the steps of one replica, and ranks share theirs"),
    Refused(CONNECTOR, AUTOSCALING, "a replica that stops would take its copies with it"),
    Refused(CONNECTOR, PREFILL, "only decoding replicas pull"),
    Refused(CONNECTOR, DEVICE, "the device does not copy what the connector loads and stores"),
    Refused(OFFLOAD, APART, "a replica has one connector, and moving KV to another replica needs it"),
    Refused(OFFLOAD, OTHER_ORDER, "vLLM has no others"),
    Refused(OFFLOAD, STATES, _UNSEEN),
    Refused(THRESHOLD, TIERS, "vLLM refuses it too"),
    Refused(TIERS, KV_GROUPS, _UNSEEN),
    Refused(KV_GROUPS, APART, "a transfer moves the blocks of one group of layers"),
    Refused(KV_GROUPS, CADENCE, _UNSEEN),
    Refused(KV_GROUPS, SEVERAL_MODULES, _UNSEEN),
    Refused(KV_GROUPS, OWN_HASHES, _UNSEEN),
    Refused(KV_GROUPS, DRAFTED_ADAPTERS, _UNSEEN),
    Refused(KV_GROUPS, CACHE_EVENTS, "the groups of layers tell no router what they keep"),
    Refused(STATES, DRAFTS, "a state cannot be rolled back to the last accepted draft"),
    Refused(DRAFTS_AHEAD, RANKS, "SGLang's ranks draft here only in steps of their own"),
    Refused(DRAFTS_AHEAD, APART, "memory ahead of the tokens is known only where one replica prefills and decodes"),
    Refused(DRAFTS, STEP_ORDER, "steps with drafts give several tokens, and the order counts steps"),
    Refused(DRAFTS, DEVICE, "the device verifies no drafts"),
    Refused(ADAPTERS, CADENCE, _UNSEEN),
    Refused(ADAPTERS, APART, _UNSEEN),
    Refused(ADAPTERS, EXECUTOR, "an executor is not told of adapters"),
    Refused(IMAGES, CADENCE, _UNSEEN),
    Refused(IMAGES, DRAFTS, _UNSEEN),
    Refused(IMAGES, KV_GROUPS, _UNSEEN),
    Refused(IMAGES, APART, _UNSEEN),
    Refused(IMAGES, EXECUTOR, "an executor is not told of images"),
    Refused(IMAGES, SESSIONS, "which images a later turn sends again is not modelled"),
    Refused(AUTOSCALING, RANKS, "ranks step together, so none can start or stop alone"),
    Refused(AUTOSCALING, APART, "a transfer needs a fixed pair of replicas"),
    Refused(RANKS, OTHER_PREEMPTION, "vLLM's ranks preempt by recomputing"),
    Refused(SERVER_CAPS, APART, "a cap on one server says nothing of halves of requests on two"),
    Refused(TOKEN_CAP, API_SERVERS, "each API server has a cap of its own on its own tokens, known here of one alone"),
    Refused(BATCHES, APART, "a request would wait for the others of its batch on both replicas"),
    Refused(PREFIX_CACHE, DECODE_SENT, "it computes no prefix"),
    Refused(WHOLE_REQUESTS, APART, "halves of requests are served apart"),
    Refused(SWAP_OVERLAP, DEVICE, "the device moves blocks before a step, not beside it"),
    Refused(CONNECTOR, REAL, "copies of KV are not handed to it"),
    Refused(KV_GROUPS, REAL, "groups of layers are not handed to it yet"),
    Refused(PIPELINE, REAL, "stages are not handed to it yet"),
    Refused(APART, REAL, "it serves whole requests"),
    Refused(DRAFTS, REAL_SGLANG, "drafts are not handed to it"),
)
"""Every pair that is refused. Of several in one server, the first is told."""


def refused(parts: Collection[Part]) -> Refused | None:
    """The first pair of a server's parts that cannot be combined; None where all of them can.

    It is told of the most special part: of drafts that take memory ahead, where the row is about drafts.
    """
    here = {kind: part for part in sorted(parts, key=lambda part: len(part.kinds)) for kind in part.kinds}
    for row in REFUSED:
        if row.first in here and row.second in here:
            return Refused(here[row.first], here[row.second], row.why)
    return None


def between(one: Part, other: Part) -> Refused:
    """The row of two parts that cannot be combined."""
    row = refused((one, other))
    assert row is not None, (one.words, other.words)
    return row


def check(parts: Collection[Part], whose: str) -> None:
    """Raise InputError, which begins with `whose`, where two of the parts cannot be combined."""
    if (row := refused(parts)) is not None:
        raise row.error(whose)
