"""Refuse rows that lack a part of the model: it would cost nothing in the fitted profile."""

from __future__ import annotations

from calibration.rows import KernelRows
from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.timing.profile.profile_scope import kv_precision, precision


def check_scope(rows: KernelRows, model: Model) -> None:
    """Raise InputError where the rows are of another precision than the model, or lack a part of its layers."""
    needs = precision(model)
    if rows.dtype and rows.dtype != needs:
        hint = "rows of that precision, or the model as it was measured"
        raise InputError(f"the rows have {rows.dtype} weights, and {model.name} has {needs}", hint=hint)
    if rows.kv_dtype and rows.kv_dtype != kv_precision(model):
        what = f"the rows have a KV cache in {rows.kv_dtype}, and {model.name} has one in {kv_precision(model)}"
        raise InputError(what, hint="rows of that precision, or model.kv_dtype_bytes as it was measured")
    has_experts = bool(len(rows.table("experts")["us"]))
    if model.experts and not has_experts:
        layers = f"{model.moe_layers} of its {model.layers} layers"
        raise InputError(
            f"no rows of experts, and {model.name} has {model.experts} in each of {layers}: they would cost nothing",
            hint="rows of the kind experts beside these, or kind: roofline, which prices experts by their dimensions",
        )
    if has_experts and not model.experts:
        raise InputError(f"the rows hold experts, and {model.name} has none", hint="--model M, one with experts")
    if model.kv_lora_rank:
        raise InputError(
            f"{model.name} has multi-head latent attention, whose kernels cannot be fitted yet",
            hint="kind: roofline, which prices it by its dimensions",
        )
    if model.shared_experts or model.dense_layers:
        raise InputError(
            f"{model.name} has shared experts or layers without experts: rows cannot tell their matrices apart yet",
            hint="kind: roofline, which prices them by their dimensions",
        )
