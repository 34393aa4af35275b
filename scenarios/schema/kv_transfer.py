"""The `kv_transfer:` of a scenario: the link between groups that prefill and groups that decode."""

from typing import Annotated, Literal, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.durations import Time
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict


class KVTransferConfig(Strict):
    """The link that KV moves over from groups that prefill to groups that decode: shared, one transfer at a time."""

    bandwidth_gb_s: Annotated[float, Field(ge=1e-6, le=1e6), doc("bandwidth; a port of 400 Gbit/s has 50")] = 50.0
    latency_s: Annotated[Time, doc("added to each transfer")] = 0.0
    connector: Annotated[
        Literal["nixl"] | None,
        doc("nixl: decoding servers pull what their prefix cache lacks, by the rules of vLLM's connector"),
    ] = None
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"], doc("what becomes of a request whose load failed, with a connector")
    ] = "fail"
    failure_rate: Annotated[Annotated[float, Field(ge=0, le=1)], doc("share of loads that fail, with a connector")] = (
        0.0
    )

    @model_validator(mode="after")
    def _for_a_connector(self) -> Self:
        for key in ("kv_load_failure_policy", "failure_rate"):
            if self.connector is None and key in self.model_fields_set:
                raise refusal("no load fails without a connector", "connector: nixl, or leave the key out", key=key)
        return self


def check_roles(roles: set[str]) -> None:
    """Refuse groups whose roles do not make whole requests."""
    if roles not in ({"both"}, {"prefill", "decode"}):
        raise refusal(
            f"groups of the roles {', '.join(sorted(roles))} make no fleet",
            "`prefill` and `decode`, each at least once, or no role at all",
            key="fleet",
        )
