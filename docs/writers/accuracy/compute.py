"""Run every case of the page of accuracy, and write the page, its figure and its data files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

SOURCES = "measured/calibration"
"""The kernel tables' sources, in the shared folder."""

COMPOSED_HOST = "0.18"
"""The version whose host goes with composed kernels: most of those runs say none, and are of its time."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from docs.writers.accuracy.sensitivity import Sensitivity
    from docs.writers.accuracy.silicon import KernelsOf
    from docs.writers.tables import Files

SENSITIVE = ("blind-rtx4090-llama31-8b", "blind-rtxpro6000-qwen3-32b-tp2", "measured-rtxpro6000-qwen3-30b-a3b")
"""A server short of memory, one whose GPUs add up what they compute, and one whose GPUs share experts."""


def write(folder: Path) -> None:
    """Write accuracy.md, its figure and its data into `folder`. Raises InputError without the measurements."""
    from docs.writers.accuracy.page import FIGURE
    from docs.writers.accuracy.picture import sensitivity_picture
    from docs.writers.tables import write_files
    from reports.picture import write

    text, files, sensitivities = compute()
    titles = {each.scenario: [(effect.change.name, effect.moves) for effect in each.effects] for each in sensitivities}
    write(folder / FIGURE, sensitivity_picture(titles).png)
    write(folder / "accuracy.md", text)
    write_files(folder, files)


def compute() -> tuple[str, Files, list[Sensitivity]]:
    """The page's text, its data files, and what its figure shows."""
    from docs.writers.accuracy import beside, clocks, uneven
    from docs.writers.accuracy.cases import BLIND, CASES, COMPOSED, SILICON, evaluate
    from docs.writers.accuracy.composed import left_out_models
    from docs.writers.accuracy.data import accuracy_files
    from docs.writers.accuracy.page import load_documents, page
    from docs.writers.accuracy.sensitivity import changes_for, sensitivity
    from docs.writers.accuracy.silicon import fit_hosts, read_silicon, score
    from scenarios.profiles import shipped_parts, shipped_profiles, shipped_tables
    from scenarios.runs.runner import run
    from scenarios.schema.loader import shared_folder
    from simulator.timing.tables import read_tables

    runs = read_silicon(shared_folder() / SILICON)
    kernels_of = kernels()
    hosts = fit_hosts(runs, kernels_of)
    unlabelled = [run for run in runs if not run.version and run.dtype == "fp8"]
    mixtures = [run for run in runs if run.dtype == "mxfp4"]
    sensitivities = [sensitivity(name, changes_for(name)) for name in SENSITIVE]
    profiles, parts = load_documents(list(shipped_profiles().values())), load_documents(shipped_parts())
    silicon, left_out = score(runs, kernels_of, hosts), left_out_models()
    tables = [read_tables(path) for path in shipped_tables().values()]
    text = page(
        profiles,
        [evaluate(case) for case in (*CASES, *COMPOSED)],
        {name: run(name).summary for name in BLIND},
        silicon,
        hosts,
        sensitivities,
        left_out,
        tables,
        beside.leave_one_card_out(beside.read_mixed(shared_folder() / SOURCES)),
        score(unlabelled, kernels(oldest=True), hosts),
        uneven.leave_one_card_out(uneven.read_uneven(shared_folder() / SOURCES)),
        clocks.read_clocks(shared_folder() / SOURCES),
        score(mixtures, kernels(backends={}), hosts),
        parts,
    )
    return text, accuracy_files(profiles, silicon, left_out, tables, parts), sensitivities


def kernels(oldest: bool = False, backends: Mapping[str, str] | None = None) -> KernelsOf:
    """Kernels of closed-loop runs: by a shipped profile of model, GPU, dtype and parallelism, else composed of tables.

    These are of the version next to the run's, the newest where it says none, or the `oldest` if so wanted; with the
    host of a server of that time. Experts are computed by the kernels that the servers were told to take; by those of
    `backends`, by model, where these are given.
    """
    from dataclasses import replace

    from docs.writers.accuracy.composed import next_tables, oldest_tables
    from docs.writers.accuracy.silicon import BACKENDS, Kernels, SiliconRun
    from scenarios.profiles import shipped_profiles
    from scenarios.servers import server_of
    from simulator.timing.profile import Options, ProfileCost, read_profile
    from simulator.timing.tables import compose

    told = BACKENDS if backends is None else backends
    profiles = [read_profile(path) for path in shipped_profiles().values()]
    known = {(p.model, p.gpu, p.tensor_parallel, str(p.document.get("dtype", "bf16"))): p for p in profiles}

    def kernels_of(run: SiliconRun) -> Kernels:
        profile = known.get((run.model, run.gpu, run.tensor_parallel, run.dtype))
        if profile is not None:
            return Kernels("profile", ProfileCost(replace(profile, host_per_seq_s=0.0), Options(host_s=0.0)))
        tables = oldest_tables(run.gpu) if oldest else next_tables(run.gpu, run.version)
        model, gpu = run.resolve_model(), run.resolve_gpu()
        composed = compose(tables, model, gpu, run.tensor_parallel, backend=told.get(run.model, "auto"))
        return Kernels("tables", ProfileCost(composed, Options(host_s=0.0)), server_of("vllm").host(COMPOSED_HOST))

    return kernels_of
