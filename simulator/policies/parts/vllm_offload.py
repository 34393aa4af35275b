"""vLLM's flags of KV offload: `--kv-offloading-size` and `--kv-transfer-config` (vllm/config, v1/kv_offload, 0.33)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

SIZE, REST, BACKEND = "hardware.kv_offload.host_gib", "hardware.kv_offload", "hardware.kv_offload.backend"
"""The host's memory, everything else of the tier, and whose it is: three flags say one mapping."""

_GIB = 2**30
_CONNECTOR, _TIERING = "OffloadingConnector", "TieringOffloadingSpec"
_NAMES = {"eviction_policy": "policy"}
_TAKEN = ("eviction_policy", "blocks_per_chunk", "offload_prompt_only", "store_threshold", "sync_load_budget_bytes")
_DEFAULTS = {"policy": "lru", "blocks_per_chunk": 1, "offload_prompt_only": True, "store_threshold": 0,
             "sync_load_budget_bytes": 0}  # fmt: skip
_PLACES: Mapping[str, Mapping[str, Any]] = {
    "fs": {"root_dir": "ROOT_DIR"},
    "obj": {"store_config": {"bucket": "BUCKET", "endpoint_override": "HOST"}},
}
"""What a tier cannot start without, and a scenario does not say."""


def read_transfer(text: str) -> Mapping[str, Any]:
    """Return what a `--kv-transfer-config` of the OffloadingConnector says of `hardware.kv_offload`.

    `block_size` is the tokens of a chunk, for `joined`. Raises ValueError for another connector, and for what is no
    such JSON or is not modelled.
    """
    given = json.loads(text)
    if not isinstance(given, dict) or given.get("kv_connector", _CONNECTOR) != _CONNECTOR:
        raise ValueError("no OffloadingConnector")
    extra = given.get("kv_connector_extra_config") or {}
    tiers = extra.get("secondary_tiers") or []
    if extra.get("spec_name", _TIERING) not in (_TIERING, "CPUOffloadingSpec") or any(
        not isinstance(tier, dict) or tier.get("type") not in _PLACES for tier in tiers
    ):
        raise ValueError("a store that is not modelled")
    found = {_NAMES.get(key, key): extra[key] for key in _TAKEN if key in extra}
    if "cpu_bytes_to_use" in extra:
        found["host_gib"] = extra["cpu_bytes_to_use"] / _GIB
    if "block_size" in extra:
        found["block_size"] = extra["block_size"]
    if tiers:
        found["tiers"] = [{"type": tier["type"]} for tier in tiers]
    return found


def write_transfer(rest: Mapping[str, Any]) -> str:
    """Return the JSON of what `--kv-offloading-size` does not say."""
    extra: dict[str, Any] = {}
    for key in _TAKEN:
        value = rest.get(_NAMES.get(key, key))
        if value not in (None, _DEFAULTS[_NAMES.get(key, key)]):
            extra[key] = value
    if rest.get("tiers"):
        extra["spec_name"] = _TIERING
        extra["secondary_tiers"] = [{"type": tier["type"], **_PLACES[tier["type"]]} for tier in rest["tiers"]]
    return json.dumps({"kv_connector": _CONNECTOR, "kv_role": "kv_both", "kv_connector_extra_config": extra})


def read_backend(text: str) -> str:
    """Return vLLM's own backend. Raises ValueError for others."""
    if text != "native":
        raise ValueError("not vLLM's own offload")
    return text


def joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Make `hardware.kv_offload` of its flags; none where nothing names the host's memory."""
    whole = dict(found.get(REST) or {})
    tokens = whole.pop("block_size", None)
    if tokens is not None:
        whole["blocks_per_chunk"] = max(1, tokens // (found.get("engine.block_size") or 16))
    if found.get(SIZE) is not None:
        whole["host_gib"] = found[SIZE]
    return {REST: whole if "host_gib" in whole else None, SIZE: None, BACKEND: None}


def written(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of the two flags: the second is written where anything but the memory differs from vLLM's."""
    tier = values.get(REST)
    if not isinstance(tier, Mapping):
        return {}
    differs = tier.get("tiers") or any(tier.get(key, default) != default for key, default in _DEFAULTS.items())
    return {SIZE: tier["host_gib"], REST: tier if differs else None}


def remarks(values: Mapping[str, object]) -> Sequence[str]:
    """Return what no flag says of the tiers."""
    tier = values.get(REST)
    sizes = [each for each in tier.get("tiers") or () if each.get("size_gib")] if isinstance(tier, Mapping) else []
    return ["vLLM's further tiers have no bound: keep them to size_gib from outside"] if sizes else []
