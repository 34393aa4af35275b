"""Weights and pages in fp8: numbers, products, models, precision in words, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from calibration.fit import check_scope
from calibration.own_steps import fit_steps
from calibration.rows import KernelRows, read_rows
from gpu_backend import weights
from gpu_backend.backend import Backend, local_weights
from gpu_backend.decoder import PagedPool
from gpu_backend.device import Cpu
from gpu_backend.kernel_choice import available, open_attention
from gpu_backend.probes import Grid
from gpu_backend.session import MEASURED, ROWS, held_bytes, page_bytes, profile, write_profile
from gpu_backend.weights import Dense, Mlp, check_model, load_weights, random_weights
from gpu_backend.work import AttentionShape, KVScales, ScheduledPart, Swap, Work, step_arrays
from simulator.errors import InputError
from simulator.hardware.models import Model, custom_model, find_model
from simulator.timing.profile.profile_schema import kv_precision, precision
from tests.gpu_backend.test_checkpoint import BASE, named, write
from tools.kernel_bench.cases import reference_attention

WIDE = custom_model(BASE)
FP8 = replace(WIDE, dtype_bytes=1, kv_dtype_bytes=1)


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def apart(one: Any, other: Any) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def test_numbers_are_the_nearest_and_none_is_lost_beyond_the_largest() -> None:
    given = torch.tensor([1e6, -1e6, 447.0, 1.06, 1.07, 0.0, 2**-9, 2**-11])
    expected = [448.0, -448.0, 448.0, 1.0, 1.125, 0.0, 2**-9, 0.0]
    assert weights.quantised(given, 1.0).float().tolist() == expected
    assert weights.quantised(given * 0.3, 0.3).float().tolist() == expected


@pytest.mark.parametrize("per", ["channel", "tensor"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_products_here_are_exact_and_those_of_torchs_operator(per: weights.Per, tokens: int) -> None:
    """The dequantised product, which a GPU's is compared with, against float64 and against `_scaled_mm`."""
    weight, scale = weights.quantised_weight(drawn(48, 32) * drawn(48, 1, seed=1).exp(), per)
    assert len(scale) == (48 if per == "channel" else 1)
    x, x_scale = weights.quantised_rows(drawn(tokens, 32, seed=2) * 50)
    assert (x.float().abs().amax(1) == weights.LARGEST).all(), "each token has a scale of its own"
    found = weights.product(x, x_scale, weight, scale, torch.float32)
    wide = (x.double() * x_scale) @ (weight.double() * scale.double()[:, None]).T
    assert apart(found, wide) < 1e-6
    columns = scale[None, :].expand(1, 48).contiguous()
    by_torch = torch._scaled_mm(x, weight.t(), scale_a=x_scale, scale_b=columns, out_dtype=torch.bfloat16)
    assert apart(by_torch, found) < 5e-3


def test_a_scale_a_channel_keeps_small_channels() -> None:
    weight = drawn(8, 64)
    weight[3] *= 1e-6
    by_channel, by_tensor = (weights.quantised_weight(weight, per) for per in ("channel", "tensor"))
    assert apart(by_channel[0][3].float() * by_channel[1][3], weight[3]) < 0.04
    assert apart(by_tensor[0][3].float() * by_tensor[1], weight[3]) > 0.3


def logits(model: Model, **more: Any) -> Any:
    backend = Backend(model, Cpu(1), 32, 4, seed=5, **more)
    parts = ScheduledPart(0, 0, list(range(37)), list(range(1, 11))), ScheduledPart(1, 0, [9] * 12, list(range(11, 14)))
    return backend.logits(Work((), parts))


def test_a_model_in_fp8_is_the_model_but_for_rounding() -> None:
    """Three binary digits: some percent with the weights, less with the cache."""
    wide = logits(WIDE)
    assert 0.005 < apart(logits(replace(WIDE, dtype_bytes=1)), wide) < 0.06
    assert 0.001 < apart(logits(replace(WIDE, kv_dtype_bytes=1)), wide) < 0.03
    assert apart(logits(FP8, attention="gathered"), logits(FP8)) < 1e-3


@pytest.mark.parametrize("name", ["torch", "gathered"])
def test_pages_in_fp8_against_float64(name: str) -> None:
    assert name in available("cpu")
    shape, scales = AttentionShape(4, 2, 16, 8, fp8_kv=True), KVScales(0.06, 0.4)
    step = step_arrays([ScheduledPart(0, 30, [0], [1, 2, 3, 4]), ScheduledPart(1, 13, [0] * 21, [5, 6, 7, 8, 9])], 1, 8)
    kv = drawn(10, 2, 2, 8, 16).to(weights.E4M3)
    query, key, value = drawn(22, 4, 16, seed=1), drawn(22, 2, 16, seed=2), drawn(22, 2, 16, seed=3)
    attention = open_attention(name, shape, "cpu", torch.float32)
    out = attention.attend(query, key, value, kv, attention.prepare(step), scales=scales)
    lengths = step.context.tolist(), np.diff(step.query_start).tolist()
    expected = reference_attention(query, kv, torch.from_numpy(step.tables), *lengths, kv_scales=scales)
    assert apart(out, expected) < 1e-5
    assert apart(out, reference_attention(query, kv, torch.from_numpy(step.tables), *lengths)) > 0.1
    kept = kv[torch.from_numpy(step.slot // 8), 0, :, torch.from_numpy(step.slot % 8)]
    assert torch.equal(kept.float(), weights.quantised(key, scales.key).float())


def test_a_kernel_that_reads_no_fp8_pages_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(InputError, match="vllm takes no pages in fp8"):
        open_attention("vllm", AttentionShape(4, 2, 16, 8, fp8_kv=True), "cuda", torch.bfloat16)


def test_pages_in_fp8_come_back_as_they_went() -> None:
    pool = PagedPool(FP8, 6, 4, 4, "cpu", weights.E4M3)
    weights.random_pages(pool.kv, 0, at_once=100)
    assert float(pool.kv.float().std()) == pytest.approx(1.0, abs=0.05)
    assert pool.bytes_per_block == FP8.kv_bytes_per_token() * 4
    before, sums = pool.kv.float(), pool.checksums([5, 1, 3])
    pool.swap_out(Swap((5, 1, 3), (0, 2, 3)))
    assert pool.host_checksums([0, 2, 3]) == sums
    pool.poison([5, 1, 3])
    assert (pool.kv[:, [5, 1, 3]].float() == weights.LARGEST).all()
    pool.swap_in(Swap((3, 0, 2), (2, 6, 5)))
    assert torch.equal(pool.kv[:, [2, 6, 5]].float(), before[:, [3, 5, 1]])


def test_shares_of_a_matrix_have_their_own_scales() -> None:
    whole = random_weights(FP8, 3, "cpu", torch.float32)
    qkv, down = whole.layers[0].qkv, _mlp(whole.layers[0].mlp).down
    shares = [local_weights(FP8, whole, rank, 2).layers[0] for rank in (0, 1)]
    assert qkv.scale is not None
    queries = [_wide(share.qkv)[:32] for share in shares]
    assert torch.equal(torch.cat(queries), _wide(qkv)[:64])
    assert torch.equal(torch.cat([_wide(_mlp(share.mlp).down) for share in shares], 1), _wide(down))


def _mlp(mlp: Any) -> Mlp:
    assert isinstance(mlp, Mlp)
    return mlp


def _wide(dense: Dense) -> Any:
    assert dense.scale is not None
    return dense.weight.float() * dense.scale[:, None]


class Half(Cpu):
    """Computes in bfloat16, as a GPU does."""

    def dtype(self, model: Model) -> Any:
        del model
        return torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype_bytes": 2, "kv_dtype_bytes": 2}, ("bf16", "bf16")),
        ({"dtype_bytes": 1, "kv_dtype_bytes": 1}, ("fp8", "fp8")),
    ],
)
def test_a_gpus_rows_name_their_precision_in_the_cost_models_words(
    changes: dict[str, int], words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very words that a profile is held against, or nothing that a GPU measured could be fitted."""
    model = replace(WIDE, **changes)  # type: ignore[arg-type] # numbers all
    backend = Backend(model, Half(1), 64, 4)
    assert backend.precision == words == (precision(model), kv_precision(model))
    monkeypatch.setattr("gpu_backend.session.PASSES", 1)
    found = profile(backend, Grid(2, 16, 16), kernels=False)
    header = {"device": "cuda", "gpu": "h200", "model": "m", "dtype": words[0], "kv_dtype": words[1]}
    write_profile(tmp_path, found, header)
    assert f'"kv_dtype": "{words[1]}"' in (tmp_path / MEASURED).read_text()
    rows = read_rows(tmp_path / ROWS)
    assert (rows.dtype, rows.kv_dtype) == words
    check_scope(rows, model)
    document = fit_steps(replace(rows, flagged={}), "x", "m", rows.gpu).document
    assert document is not None
    assert (document["dtype"], document["kv_dtype"]) == words
    with pytest.raises(InputError, match="KV cache in"):
        check_scope(KernelRows("h200", dtype=words[0], kv_dtype="float32"), model)


def test_fp8_weights_and_scales_of_a_folder(tmp_path: Path) -> None:
    """A folder of fp8 gives its own numbers to a model in fp8, and widened ones to another."""
    wide = named(WIDE, random_weights(WIDE, 5, "cpu", torch.float32))
    in_fp8 = dict(wide)
    for index, name in enumerate(key for key in wide if "proj" in key):
        in_fp8[name], scale = weights.quantised_weight(wide[name], "tensor" if index % 2 else "channel")
        in_fp8[f"{name}_scale"] = scale.view(-1, 1) if len(scale) > 1 else scale
    for folder, tensors in (("wide", wide), ("fp8", in_fp8)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text("{}")
        write(tmp_path / folder / "model.safetensors", tensors)
    in_fp8["model.layers.1.self_attn.k_scale"] = torch.tensor(0.25)
    write(tmp_path / "fp8" / "model.safetensors", in_fp8)
    read = load_weights(tmp_path / "fp8", FP8, "cpu", torch.float32)
    name = "model.layers.1.self_attn.k_proj.weight"
    expected = in_fp8[name].float() * in_fp8[f"{name}_scale"].view(-1, 1)
    assert torch.equal(_wide(read.layers[1].qkv)[64:96], expected)
    assert [layer.kv_scales.key for layer in read.layers] == [1.0, 0.25]
    widened = load_weights(tmp_path / "fp8", WIDE, "cpu", torch.float32)
    assert torch.equal(widened.layers[1].qkv.weight[64:96], expected)
    assert widened.layers[1].kv_scales == KVScales()
    online = load_weights(tmp_path / "wide", FP8, "cpu", torch.float32)
    assert apart(_wide(online.layers[1].qkv)[64:96], wide[name]) < 0.04
    del in_fp8[f"{name}_scale"]
    write(tmp_path / "fp8" / "model.safetensors", in_fp8)
    with pytest.raises(InputError, match=r"have no .*k_proj\.weight_scale"):
        load_weights(tmp_path / "fp8", FP8, "cpu", torch.float32)


def test_memory_is_counted_as_it_is_kept() -> None:
    model = replace(find_model("llama-3.1-8b"), dtype_bytes=1, kv_dtype_bytes=1)
    tables = 2 * model.vocab * model.hidden
    assert held_bytes(model, Half(1)) == model.num_parameters + tables
    assert page_bytes(model, Half(1), 16) == 16 * model.kv_bytes_per_token()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype_bytes": 0.5}, "0.5-byte weights multiplied in bf16"),
        ({"dtype_bytes": 1, "matmul_dtype": "fp8_block"}, "multiplied in fp8_block"),
        ({"dtype_bytes": 1, "experts": 4, "active_experts": 2}, "no experts in fp8"),
        ({"dtype_bytes": 1, "intermediate": 100}, "intermediate is 100"),
        ({"sliding_window": 64}, "no sliding window"),
    ],
)
def test_what_it_cannot_compute_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_model(replace(WIDE, **changes))
