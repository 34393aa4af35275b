"""`engine.speculative_config`: the drafter, the number of drafts, and how many are accepted; vLLM's names."""

from typing import Annotated, Any, Literal, Self

from annotated_types import doc
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from scenarios.schema.allowed import draft_model_schema
from scenarios.schema.base import JsonSchema, Strict
from scenarios.schema.source.hints import nearest, refusal
from simulator.errors import InputError
from simulator.speculative import PRESETS, Method, SpeculativeConfig, check_rates

_LIMITS = "allowed: shares of verify steps, each from 0 to 1 and none above the one before"


def _preset(name: str) -> str:
    if name not in PRESETS:
        near = nearest(name, PRESETS)
        hint = f"{f'did you mean `{near}`? ' if near else ''}`batchlab list acceptance` shows all"
        raise refusal(f"no measurement of acceptance is called {name!r}", hint)
    return name


class AcceptanceConfig(Strict):
    """A law of acceptance: rates by position, or a mean length."""

    rates: Annotated[
        list[Annotated[float, Field(ge=0, le=1)]] | None,
        doc("share of verify steps in which at least 1, 2, ... drafts are accepted"),
    ] = None
    mean_length: Annotated[
        Annotated[float, Field(ge=1, le=1001)] | None,
        doc("tokens that a verify step delivers on average, the model's own among them; by vLLM's synthetic law"),
    ] = None

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        if (self.rates is None) == (self.mean_length is None):
            raise refusal("acceptance is either rates or a mean_length", "{rates: [0.7, 0.5, 0.3]}")
        try:
            check_rates(self.rates or ())
        except ValueError as error:
            raise refusal(str(error), _LIMITS, key="rates") from None
        if self.rates == []:
            raise refusal("no rates", _LIMITS, key="rates")
        return self


Accepted = Annotated[
    Annotated[
        str,
        AfterValidator(_preset),
        JsonSchema(lambda: {"enum": list(PRESETS), "x-allowed": "a name of `batchlab list acceptance`"}),
        Tag("<name>"),
    ]
    | Annotated[AcceptanceConfig, Tag("<law>")],
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<law>"),
    Field(description="a name of `batchlab list acceptance`, {rates: [...]} or {mean_length: ...}"),
]


class SpeculativeDecoding(Strict):
    """A drafter, as vLLM's --speculative-config names it, and the acceptance of its drafts.

    `policy: sglang` takes it too: `num_speculative_tokens` is its --speculative-num-steps.
    """

    method: Annotated[Method, doc("how drafts are proposed")]
    num_speculative_tokens: Annotated[Annotated[int, Field(ge=0, le=1000)], doc("drafts a step; 0: none")]
    num_speculative_tokens_per_batch_size: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=0, le=10**9)]], Field(min_length=3, max_length=3)]] | None,
        doc("drafts by the number of requests of a step, as [first, last, drafts]"),
    ] = None
    acceptance: Annotated[
        Accepted | None,
        doc("how many drafts are accepted; null: as measured for this model and method, or as the trace says"),
    ] = None
    acceptance_by_class: Annotated[dict[str, Accepted], doc("acceptance of classes that differ, by name")] = Field(
        default_factory=dict
    )
    draft_model: Annotated[
        str | dict[str, Any] | None,
        JsonSchema(draft_model_schema),
        doc("model that drafts, as `model`; null: a head by the model's own dimensions"),
    ] = None
    parallel_drafting: Annotated[bool, doc("the draft model proposes all tokens in one pass")] = False
    disable_lookahead_block_hashes: Annotated[bool, doc("EAGLE and MTP: hashes cover their block alone")] = False
    disable_eagle_block_drop: Annotated[bool, doc("EAGLE and MTP: keep the last block of a prefix hit")] = False
    model_runner: Annotated[Literal["v1", "v2"], doc("vLLM's model runner")] = "v2"
    eagle_topk: Annotated[
        Annotated[int, Field(ge=1, le=64)], doc("SGLang: branches that each step of its tree opens; 1: a chain")
    ] = 1
    num_draft_tokens: Annotated[
        Annotated[int, Field(ge=2, le=1001)] | None,
        doc("SGLang: tokens of its tree, the sampled one among them; null: those of the chain"),
    ] = None

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        try:
            self.config(1)
        except ValueError as error:
            key, _, what = str(error).partition(" ")
            raise refusal(f"{key} {what}", None, key=key if key in type(self).model_fields else "method") from None
        if self.method == "draft_model" and self.draft_model is None and self.num_speculative_tokens:
            raise refusal("missing: the model that drafts", "draft_model: qwen3-0.6b", key="draft_model")
        if self.method == "ngram" and self.draft_model is not None:
            raise refusal("a lookup of n-grams has no draft model", "leave it out", key="draft_model")
        if self.draft_model is not None:
            try:
                self.resolve_draft_model()
            except InputError as error:
                raise refusal(error.message, error.hint, key="draft_model") from None
        return self

    def config(self, modules: int) -> SpeculativeConfig:
        """The configuration as the engine takes it, of a model with so many MTP modules. Raises ValueError."""
        return SpeculativeConfig(
            self.method,
            self.num_speculative_tokens,
            self.num_speculative_tokens_per_batch_size,  # type: ignore[arg-type] # lists of three, as YAML has them
            modules if self.method == "mtp" else 1,
            self.parallel_drafting,
            self.disable_lookahead_block_hashes,
            self.disable_eagle_block_drop,
            self.model_runner,
            self.eagle_topk,
            self.num_draft_tokens,
        )

    def resolve_draft_model(self) -> Any:
        """The draft model's dimensions; None where a head drafts."""
        from simulator.hardware.models import model_of

        return None if self.draft_model is None else model_of(self.draft_model)
