"""Detect the format of a source, and read its rows."""

from pathlib import Path

from calibration.names import model_of
from calibration.rows import KernelRows, read_rows
from calibration.sources.aiconfigurator import read_aiconfigurator
from calibration.sources.llmservingsim import read_llmservingsim
from calibration.sources.splitwise import read_splitwise
from calibration.sources.vidur import FILES, read_vidur
from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice

FORMATS = ("auto", "rows", "llmservingsim", "aiconfigurator", "vidur", "splitwise")


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
        hint = "a folder with meta.yaml (LLMServingSim), *_perf.parquet (aiconfigurator) or mlp.csv (Vidur)"
        raise InputError("the folder has no known format", file=str(path), hint=hint)
    if ".jsonl" in path.name:
        return "rows"
    if ".csv" in path.name:
        return "splitwise"
    hint = "rows (.jsonl), or Splitwise's perf_model.csv"
    raise InputError("the file has no known format", file=str(path), hint=hint)


def read_source(path: Path, form: str = "auto", model: str = "", gpu: str = "", tensor_parallel: int = 1) -> KernelRows:
    """Read the rows of a path. `model` and `gpu` choose among several in the source, or name what it does not name."""
    check_choice(form, FORMATS, "format")
    if form == "auto":
        form = detect(path)
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
