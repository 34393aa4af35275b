"""Detect the format of a source, and read its rows."""

from dataclasses import replace
from pathlib import Path

from calibration.engines import READERS
from calibration.rows import KernelRows, merge, model_of, read_rows, read_text
from calibration.sources.aiconfigurator import read_aiconfigurator
from calibration.sources.llmservingsim import read_llmservingsim
from calibration.sources.splitwise import read_splitwise
from calibration.sources.vidur import FILES, read_vidur
from simulator.errors import InputError
from simulator.parameters import check_choice

ENGINES = {reader.name: reader for reader in READERS}
FORMATS = ("auto", "rows", "llmservingsim", "aiconfigurator", "vidur", "splitwise", *ENGINES)


def detect(path: Path) -> str:
    """Detect the format of a path; InputError where it is of none."""
    if not path.exists():
        raise InputError("no such file or folder", file=str(path))
    if path.is_dir():
        if (path / "meta.yaml").exists():
            return "llmservingsim"
        if any(path.glob("*_perf.parquet")):
            return "aiconfigurator"
        if any((path / f"{name}{tail}").exists() for name in FILES for tail in (".csv", ".csv.gz")):
            return "vidur"
        if _runs(path):
            return "vllm-serve"
        hint = "a folder with meta.yaml (LLMServingSim), *_perf.parquet (aiconfigurator) or mlp.csv (Vidur)"
        raise InputError("the folder has no known format", file=str(path), hint=hint)
    text = read_text(path, "the source")
    known = next((reader.name for reader in READERS if reader.is_it(text)), None)
    if known is not None:
        return known
    if ".jsonl" in path.name:
        return "rows"
    if ".csv" in path.name:
        return "splitwise"
    tools = ", ".join(reader.tool for reader in READERS)
    hint = f"rows (.jsonl), Splitwise's perf_model.csv, or what an engine measures of itself: {tools}"
    raise InputError("the file has no known format", file=str(path), hint=hint)


def _runs(folder: Path) -> list[Path]:
    """The results of a sweep's runs, below its folder."""
    return sorted(path for path in folder.rglob("run=*.json") if path.is_file())


def read_source(path: Path, form: str = "auto", model: str = "", gpu: str = "", tensor_parallel: int = 1) -> KernelRows:
    """Read the rows of a path. `model` and `gpu` choose among several in the source, or name what it does not name."""
    check_choice(form, FORMATS, "format")
    if form == "auto":
        form = detect(path)
    if form in ENGINES:
        files = _runs(path) if path.is_dir() else [path]
        read = merge(ENGINES[form].read(read_text(each, "the source"), each) for each in files)
        return replace(read, model=model, gpu=gpu, tensor_parallel=tensor_parallel, sources=read.sources[:1])
    if form == "rows":
        return read_rows(path)
    if form == "llmservingsim":
        return read_llmservingsim(path, tensor_parallel)
    if form == "vidur":
        return read_vidur(path, tensor_parallel)
    if form == "splitwise":
        return read_splitwise(path, model, gpu, tensor_parallel)
    if not model:
        what = "aiconfigurator's tables hold the heads of many models: of which model?"
        raise InputError(what, file=str(path), hint="--model M")
    return read_aiconfigurator(path, model_of(model), tensor_parallel)
