"""Errors of costs composed from tables against costs fitted to one model, with that model's own sizes left out.

From the tables go the heads that the model has on a GPU and the widths of its products (but for the outermost of the
table): what is left is other models. Both then price the same steps, without any host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scenarios.profiles import shipped_profiles, shipped_tables
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import Model, find_model
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, Profile, ProfileCost, read_profile
from simulator.timing.tables import Tables, compose, read_tables
from simulator.timing.tables.products import layer_products, without_widths
from simulator.timing.tables.table_schema import Heads, HeadTable

SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 500, 1000, 2000, 4000, 8000, 16000)
CHUNKS = (64, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors (fractions) of steps of a model that the tables had not seen, by what the steps are."""

    profile: str
    tables: str
    errors: Mapping[str, Sequence[float]]


def next_tables(gpu: str, version: str = "") -> Tables:
    """The GPU's tables of the version next to this one ("0.12.0"); the newest for ""."""
    found = [read_tables(path) for name, path in shipped_tables().items() if name.startswith(f"{gpu}-vllm-")]
    return min(found, key=lambda each: abs(_number(each.software) - _number(version))) if version else found[0]


def oldest_tables(gpu: str) -> Tables:
    """The GPU's tables of the oldest version."""
    return next_tables(gpu, "0.0")


def left_out_models() -> list[LeftOut]:
    """Every shipped profile of a dense model that has tables of its GPU: those of the same software, or else the next.

    They differ in what measured them, too, where the software differs.
    """
    found = []
    for path in shipped_profiles().values():
        profile = read_profile(path)
        if profile.experts is None and any(name.startswith(f"{profile.gpu}-vllm-") for name in shipped_tables()):
            found.append(_left_out(profile, next_tables(profile.gpu, str(profile.document["software"]))))
    return found


def _number(software: str) -> float:
    """A version's minor number, of "vLLM 0.19.0" or "0.19.0"."""
    return float(software.split()[-1].split(".")[1])


def _left_out(profile: Profile, tables: Tables) -> LeftOut:
    model, ranks = find_model(profile.model), profile.tensor_parallel
    rest = compose(_without(tables, model, ranks), model, find_gpu(profile.gpu), ranks)
    is_reduced = "all_reduce" not in profile.document.get("assumed", ())  # a nominal link tells nothing of tables
    fitted, composed = (ProfileCost(each, Options(host_s=0.0, all_reduce=is_reduced)) for each in (profile, rest))
    errors = {
        kind: [composed.step_s(step) / fitted.step_s(step) - 1.0 for step in steps]
        for kind, steps in (("decodes", list(_decodes())), ("prompts", list(_prompts(0))),
                            ("both", list(_prompts(32))))
    }  # fmt: skip
    return LeftOut(profile.name, tables.name, errors)


def _without(tables: Tables, model: Model, ranks: int) -> Tables:
    heads = (model.heads // ranks, model.local_kv_heads(ranks))
    sizes = [*layer_products(model, ranks).values(), (-(-model.vocab // ranks), model.hidden)]
    n, k = {float(size) for size, _ in sizes}, {float(size) for _, size in sizes}

    return replace(
        tables,
        products={name: without_widths(surface, n, k) for name, surface in tables.products.items()},
        decode=tuple(_without_heads(part, heads) for part in tables.decode),
        prompt=tuple(_without_heads(part, heads) for part in tables.prompt),
    )


def _without_heads(table: HeadTable, heads: Heads) -> HeadTable:
    return replace(table, log_us={each: us for each, us in table.log_us.items() if each != heads})


def _decodes() -> Iterator[StepShape]:
    """Steps of decodes alone, of half a million keys and less."""
    for seqs in SEQS:
        for context in CONTEXTS:
            if seqs * context <= 2**19:
                yield StepShape(seqs, seqs * context)


def _prompts(decodes: int) -> Iterator[StepShape]:
    """Steps with a fresh prompt, or the next chunk of one, beside so many decodes of 1,000 tokens."""
    for chunk in CHUNKS:
        for cached in (0, 2048):
            pairs = chunk * cached + chunk * (chunk + 1) // 2
            yield StepShape(decodes, decodes * 1000, 1, chunk, chunk + cached, pairs, 0, 0, chunk + cached)


def median_percent(errors: Sequence[float]) -> float:
    """The median size of errors, in per cent."""
    return 100.0 * float(np.median(np.abs(errors)))
