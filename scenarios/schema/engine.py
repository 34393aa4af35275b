"""The `engine:` of a scenario: a batching policy, its parameters, and what the engine itself can do.

Parameters and their limits are declared by the policies and the queue orders (`simulator.parameters`). A scenario needs
those of its policy; `scenarios.schema.declared` puts all of them together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import Unit, doc
from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, model_validator

from scenarios.schema.allowed import Schema, parameter_schema, whole_schema
from scenarios.schema.base import JsonSchema, Strict, later
from scenarios.schema.source.hints import did_you_mean, refusal
from scenarios.servers.vllm import VLLM_SERVE
from simulator.parameters import CLASS_PATTERN, MISSING, Parameter, file_of
from simulator.policies import DEFAULT_POLICY, named_policies, policy_class, policy_parameters
from simulator.queues import QUEUES

# Hints for arguments of `vllm serve` that `engine:` does not take: the keys where they belong.

_NO_LIMIT = "has no counterpart: lengths are bounded by the workload, and a request beyond the KV cache is rejected"
_ONE_PASS = "has no counterpart: any number of prompts share a step, as far as max_num_batched_tokens goes"

_PLACES = {flag.names.split()[0].removeprefix("--").replace("-", "_"): flag.key for flag in VLLM_SERVE.flags}
_TAKEN = {
    argument: f"is `{key}`" if "." in key else f"is the top-level `{key}`"
    for argument, key in _PLACES.items()
    if not argument.startswith("no_") and not key.startswith("model.") and key != f"engine.{argument}"
}
BELONGS: Mapping[str, str] = {
    **_TAKEN,
    "model": "is the top-level `model`",
    "generation_config": "is the top-level `sampling`",
    "swap_space": "is `hardware.swap_space_gib`",
    "dtype": "is of the model: `model: {base: NAME, dtype_bytes: 2}` (1 for fp8, 4 for float32)",
    "quantization": "is of the model: `model: {base: NAME, quantization: fp8}`",
    "kv_cache_dtype": "is of the model: `model: {base: NAME, kv_cache_dtype: fp8}`",
    "enforce_eager": "is `cost: {kind: profile, cuda_graphs: false}`; other costs do not tell graphs from eager steps",
    "max_model_len": _NO_LIMIT,
    "max_long_partial_prefills": _ONE_PASS,
    "seed": "is the top-level `seed`",
}
"""The end of the sentence that begins with the argument, by argument."""


def where(argument: str) -> str | None:
    """Return the key of an argument of `vllm serve`, as a hint; None for other words. Hyphens count as underscores."""
    name = argument.removeprefix("--").replace("-", "_")
    return f"vLLM's {name} {BELONGS[name]}" if name in BELONGS else None


if TYPE_CHECKING:
    from scenarios.schema.speculative import SpeculativeDecoding
else:
    SpeculativeDecoding = later("scenarios.schema.speculative:SpeculativeDecoding")


def _speculative_schema() -> dict[str, Any]:
    from scenarios.schema.speculative import SpeculativeDecoding as Whole

    return whole_schema(Whole)


Count = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Engine(Strict):
    """The engine's own keys. Every other key is a parameter of the policy or of its queue order.

    This class is that of a user's policy, `path.py:Class`, whose file is not read yet: it takes any further key.
    """

    model_config = ConfigDict(extra="allow")
    elsewhere: ClassVar = staticmethod(where)  # a hint for a key that is unknown here

    policy: Annotated[
        str,
        Field(pattern=CLASS_PATTERN, description="the path of a file and a class in it, `path.py:Class`"),
        doc("batching policy: a name of `batchlab list policies`, or a class of your own, `path.py:Class`"),
    ]
    block_size: Annotated[int, Field(ge=1, le=2**20), doc("tokens in a KV block"), Unit("tokens")] = 16
    enable_prefix_caching: Annotated[bool, doc("requests with a common prefix share its KV blocks")] = False
    swap_overlap: Annotated[bool, doc("swapped blocks move while the next step runs")] = False
    max_queued_requests: Annotated[
        Annotated[int, Field(ge=1, le=10**9)] | None,
        doc("waiting requests, preempted ones included, from which on a replica rejects new ones; null: no limit"),
        Unit("requests"),
    ] = None
    max_num_queued_reqs: Annotated[
        Annotated[int, Field(ge=0, le=10**9)] | None,
        doc("most unfinished requests of a server, running ones included, as vLLM's cap; null: no cap"),
        Unit("requests"),
    ] = None
    max_num_queued_tokens: Annotated[
        Annotated[int, Field(ge=0, le=10**12)] | None,
        doc("tokens of prompts without a first token from which on a server rejects, as vLLM's; null: no cap"),
        Unit("tokens"),
    ] = None

    speculative_config: Annotated[
        SpeculativeDecoding | None,
        JsonSchema(_speculative_schema),
        doc("speculative decoding: drafter, number of drafts, and how many are accepted; null: none"),
    ] = None

    max_lora_rank: Annotated[
        Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None,
        doc("rank of the adapters' slots, as vLLM's; null: 16 with `max_loras`"),
    ] = None

    disable_hybrid_kv_cache_manager: Annotated[
        bool | None, doc("the cache keeps all tokens of windows too, as vLLM's; null: groups where the policy has them")
    ] = None
    prefix_match_unit: Annotated[
        Annotated[int, Field(ge=1, le=2**20)] | None,
        doc("tokens at whose multiples hits of states may end, as vLLM's; null: whole blocks"),
        Unit("tokens"),
    ] = None
    prefix_cache_retention_interval: Annotated[
        Annotated[int, Field(ge=0, le=10**9)] | Literal["all"] | None,
        doc("tokens between kept windows and states, as vLLM's; null: 0, where prompts end alone"),
        Unit("tokens"),
    ] = None

    _usual: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _asked_release: str = PrivateAttr(default="")

    def with_usual(self, usual: Mapping[str, Any]) -> Self:
        """Return the engine with these values of keys that were left out, and that stay left out."""
        found = self.model_copy()
        found.__dict__.update(usual)
        found._usual = usual
        return found

    @property
    def usual(self) -> Mapping[str, Any]:
        """The server's values of keys that were left out."""
        return self._usual

    @property
    def policy_file(self) -> Path | None:
        """The file of a user's policy; None for a built-in one."""
        return file_of(self.policy)

    @property
    def release(self) -> str | None:
        """The release of the policy's server; None where it has none to say, as of a user's policy: the newest."""
        return None if self.policy_file else self.parameter("version")

    @property
    def asked_release(self) -> str:
        """The server's release as it was given, where `version` is the nearest one that is known; '' elsewhere."""
        return self._asked_release

    def given(self) -> dict[str, Any]:
        """The parameters that were given, in the schema's order and then the file's."""
        values = {**self.__dict__, **(self.model_extra or {})}
        return {key: values[key] for key in values if key in self.model_fields_set and key not in ENGINE_KEYS}

    def takes(self) -> Mapping[str, Parameter]:
        """The parameters of the policy and of its queue order. Raises InputError for a policy that cannot be loaded."""
        own = policy_parameters(policy_class(self.policy))
        order = self.given().get("order", own["order"].default) if "order" in own else None
        return {**own, **(QUEUES[str(order)].parameters if order in QUEUES else {})}

    def parameter(self, key: str, default: Any = None) -> Any:
        """The value of a parameter: as given, or the server's, policy's or order's default; else `default`."""
        given = {**self._usual, **self.given()}
        if key in given:
            return given[key]
        known = self.takes().get(key)
        return default if known is None or known.default is MISSING else known.default

    def resolved(self) -> dict[str, Any]:
        """Every key with its value; those that are `ONLY_GIVEN` where they are.

        A user's policy keeps its defaults in its own file: they are left out.
        """
        own = {key: getattr(self, key) for key in ENGINE_KEYS}
        own = {key: value for key, value in own.items() if value is not None or key not in UNSAID}
        if (drafts := own.pop("speculative_config", None)) is not None and drafts.num_speculative_tokens:
            own["speculative_config"] = drafts.model_dump(exclude_defaults=True)
        known = {} if self.policy_file else {key: each.default for key, each in self.takes().items()}
        defaults = {key: value for key, value in known.items() if key not in ONLY_GIVEN}
        return {**own, **defaults, **self._usual, **self.given()}

    def settled(self) -> dict[str, Any]:
        """The parameters that were given, and those that are the server's."""
        return {key: value for key, value in self._usual.items() if key not in ENGINE_KEYS} | self.given()


CAPS = ("max_num_queued_reqs", "max_num_queued_tokens")
KV_GROUPS = ("disable_hybrid_kv_cache_manager", "prefix_match_unit", "prefix_cache_retention_interval")
UNSAID = (*CAPS, *KV_GROUPS, "speculative_config", "max_lora_rank")
"""Keys that are null, and not written out, unless they are given."""
ONLY_GIVEN = (
    *UNSAID,
    "max_loras",
    "max_image_embeddings",
    "disable_chunked_mm_input",
    "prefill_schedule_interval",
    "dp_sync_interval",
    "max_num_partial_prefills",
)
"""Keys that are not written out with their defaults."""

ENGINE_KEYS = tuple(Engine.model_fields)
"""The keys that are no parameters of a policy."""


DEFAULT_BUDGET: int = policy_parameters(policy_class(DEFAULT_POLICY))["max_num_batched_tokens"].default
"""The tokens of a step under a policy that bounds them by no parameter."""


def built_in(policy: str) -> str:
    """The name of a built-in policy; refused if it is none."""
    if policy in named_policies():
        return policy
    raise refusal(f"unknown policy {policy!r}", did_you_mean(policy, named_policies()))


class NamedEngine(Engine):
    """The engine of a policy that has a name: of `batchlab list policies`.

    Its further keys are those of `scenarios.schema.declared.BuiltInEngine`, which is the schema of all policies
    together: it is read only if this policy alone does not say that the values are right.
    """

    policy: Annotated[str, AfterValidator(built_in)] = DEFAULT_POLICY

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, data: Any) -> Any:
        """Bring parameters into the schema's order: the default policy's, then those of this policy and its order."""
        if not isinstance(data, Mapping) or not _is_named(data):
            return data
        places = {key: place for place, key in enumerate((*_parameters({}), *_parameters(data)))}
        return dict(sorted(data.items(), key=lambda item: places.get(item[0], len(places))))


def _is_named(data: Mapping[str, Any]) -> bool:
    return data.get("policy", DEFAULT_POLICY) in named_policies()


def _parameters(data: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of the policy and of the order that a mapping names, by name."""
    own = policy_parameters(policy_class(data.get("policy", DEFAULT_POLICY)))
    order = data.get("order", own["order"].default) if "order" in own else None
    return {**own, **(QUEUES[order].parameters if isinstance(order, str) and order in QUEUES else {})}


def named_at(value: object) -> str | None:
    """The place of the engine of a mapping that its policy alone can judge, for `later`; None for any other."""
    if isinstance(value, NamedEngine):
        return f"{__name__}:{NamedEngine.__name__}"
    if not isinstance(value, Mapping) or not _is_named(value):
        return None
    known = _parameters(value)
    given = {key: item for key, item in value.items() if key not in ENGINE_KEYS}
    are_right = all(key in known and known[key].is_just(item) for key, item in given.items())
    return f"{__name__}:{NamedEngine.__name__}" if are_right else None


# JSON Schema of `engine:`, whose keys are its own and those of the policy that it names.


def engine_schema() -> Schema:
    """The engine's own keys and the parameters of the policy that it names; any key beside a policy of the user's."""
    own = Engine.model_json_schema()["properties"]
    own["policy"].pop("x-allowed")
    of_policies = {name: policy_keys(name) for name in named_policies()}
    own["policy"]["default"] = DEFAULT_POLICY
    users = {key: own["policy"].pop(key) for key in ("type", "pattern")} | {"x-allowed": "`path.py:Class`"}
    own["policy"]["anyOf"] = [{"enum": list(of_policies)}, users]
    properties: Schema = {**own}
    for key in dict.fromkeys(key for keys in of_policies.values() for key in keys):
        properties[key] = _together({policy: keys[key] for policy, keys in of_policies.items() if key in keys})
    return {
        "type": "object",
        "properties": properties,
        "allOf": [
            {
                "if": {
                    "properties": {"policy": {"const": name}},
                    "required": [] if name == DEFAULT_POLICY else ["policy"],
                },
                "then": {"propertyNames": {"enum": [*own, *keys]}},
            }
            for name, keys in of_policies.items()
        ],
    }


def _together(declared: Mapping[str, Schema]) -> Schema:
    """One parameter as several policies declare it: all that any of them takes, and the default where they agree."""
    first, *others = declared.values()
    found = {**first, "x-policies": list(declared)}
    if any(other.get("default") != first.get("default") for other in others):
        found.pop("default", None)
    about = ("default", "description", "x-orders")
    arms = [{key: value for key, value in each.items() if key not in about} for each in declared.values()]
    different = [arm for index, arm in enumerate(arms) if arm not in arms[:index]]
    if len(different) > 1:
        found = {key: value for key, value in found.items() if key not in arms[0]} | {"anyOf": different}
    return found


def policy_keys(policy: str) -> dict[str, Schema]:
    """The parameters of a built-in policy as `engine:` takes them, then those of the orders that it can have."""
    own = policy_parameters(policy_class(policy))
    found = {name: parameter_schema(parameter) for name, parameter in own.items()}
    if "order" in own:
        for order in own["order"].words:
            for name, parameter in QUEUES[order].parameters.items():
                schema = found.setdefault(name, {**parameter_schema(parameter), "x-orders": []})
                schema["x-orders"].append(order)
    return found
