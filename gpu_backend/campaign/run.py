"""The command: every part in its order, within its time, whatever becomes of the others.

    python -m gpu_backend.campaign --out DIR [--device cuda] [--from EARLIER]

checks -> ceilings -> cases -> latency -> sweep -> profile -> fit -> lockstep -> fp8, then DIR/NAME.tar.gz. Results
stand in DIR/NAME, where NAME is what the device calls itself: rows of one GPU never carry another's name. Everything
found is in DIR/NAME/journal.jsonl at once; the same command goes on from there, as does `--from` with what an earlier
machine left.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gpu_backend.bench.kernel_bench import said
from gpu_backend.campaign.job import DeadDeviceError, Job, write_json
from gpu_backend.campaign.journal import Journal, Section
from gpu_backend.campaign.parts import PARTS
from gpu_backend.campaign.plan import TOTAL_S, plan, table
from gpu_backend.campaign.setting import name_of, setting_of
from gpu_backend.device import open_device
from gpu_backend.extra import require_torch
from simulator.errors import InputError

PACKING_S = 8.0
RESTARTS = "BATCHLAB_CAMPAIGN_RESTARTS"
MOST_RESTARTS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 done, 1 a part failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m gpu_backend.campaign", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal of a tiny model")
    parser.add_argument("--out", type=Path, help="folder for what is found")
    parser.add_argument("--model", default="llama-3.1-8b", help="of the model table; the CPU has a tiny one")
    parser.add_argument("--from", dest="earlier", type=Path, help="an earlier --out to go on from")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="what all of it may take")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    chosen = parser.parse_args(arguments)
    if chosen.plan:
        sys.stdout.write(table())
        return 0
    try:
        if chosen.out is None:
            raise InputError("where to?", hint="--out DIR")
        names = [name.strip() for name in chosen.parts.split(",")]
        if not set(names) <= set(PARTS):
            raise InputError(f"unknown parts in {chosen.parts!r}", hint=f"allowed: {', '.join(PARTS)}")
        require_torch(chosen.device)
        return _run(chosen, names)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _run(chosen: argparse.Namespace, names: Sequence[str]) -> int:
    started_s = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started_s:5.0f} s] {text}\n")
        sys.stderr.flush()

    fingerprint = open_device(chosen.device).fingerprint()
    setting = setting_of(chosen.device, fingerprint, chosen.model)
    out = _folder(chosen, {**fingerprint, "model": chosen.model})
    say(f"{fingerprint['device']} -> {out}")
    sys.stderr.write(table(name_of(fingerprint["device"])))
    journal = Journal(out / "journal.jsonl")
    state: dict[str, Any] = {}
    for part in plan():
        if part.name not in names:
            continue
        left_s = chosen.seconds - PACKING_S - (time.monotonic() - started_s)
        section = Section(journal, part.name, max(0.0, min(part.budget_s, left_s)))
        state[part.name] = _do(Job(chosen.device, setting, out, section, say), chosen, started_s)
        write_json(out / "state.json", state)
    _pack(out)
    say(f"packed: {out.parent / (out.name + '.tar.gz')}")
    return 0 if all(each["done"] for each in state.values()) else 1


def _do(job: Job, chosen: argparse.Namespace, started_s: float) -> dict[str, Any]:
    """One part: how long it took, and what went wrong if something did."""
    name = job.section.name
    begin_s = time.monotonic()
    wrong = None
    try:
        PARTS[name](job)
    except DeadDeviceError as error:
        _start_again(job, chosen, started_s, str(error))
        wrong = str(error)
    except Exception as error:
        wrong = said(error)  # which lets go of the frames, and so of the device's memory
    failed = [key for key, found in job.section.all().items() if found.get("failed")]
    took_s = time.monotonic() - begin_s
    job.say(f"{name}: {took_s:.0f} s" + (f", {wrong}" if wrong else "") + ("" if not failed else f", lost: {failed}"))
    over = job.section.is_over()
    job.__dict__.pop("bench", None)
    gc.collect()
    if job.device == "cuda":
        torch.cuda.empty_cache()
    return {"seconds": round(took_s, 1), "done": wrong is None, "wrong": wrong, "lost": failed, "out_of_time": over}


def _start_again(job: Job, chosen: argparse.Namespace, started_s: float, why: str) -> None:
    """Go on in a new process: in this one the device is lost. What broke it is in the journal and not tried again."""
    times = int(os.environ.get(RESTARTS, "0"))
    left_s = chosen.seconds - (time.monotonic() - started_s)
    if times >= MOST_RESTARTS or left_s < 2 * PACKING_S:
        return
    job.say(f"the device is lost to this process ({why}); starting another")
    os.environ[RESTARTS] = str(times + 1)
    arguments = ["--device", chosen.device, "--out", str(chosen.out), "--model", chosen.model]
    arguments += ["--seconds", f"{left_s:.0f}", "--parts", chosen.parts]
    os.execv(sys.executable, [sys.executable, "-m", "gpu_backend.campaign", *arguments])


def _folder(chosen: argparse.Namespace, fingerprint: Mapping[str, str]) -> Path:
    """The folder of this device: the one that holds its earlier results, else a new one. Rows of two never mix."""
    name = "cpu" if chosen.device == "cpu" else name_of(fingerprint["device"])
    chosen.out.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        out: Path = chosen.out / (name if number == 1 else f"{name}-{number}")
        earlier = None if chosen.earlier is None else chosen.earlier / out.name
        if not out.exists() and earlier is not None and earlier.is_dir():
            shutil.copytree(earlier, out)
        if not out.exists():
            out.mkdir()
        known = out / "fingerprint.json"
        if not known.exists():
            write_json(known, fingerprint)
        if json.loads(known.read_text(encoding="utf-8")) == dict(fingerprint):
            return out
    raise InputError("a hundred folders of other devices", file=str(chosen.out))


def _pack(out: Path) -> None:
    """All of the folder as one file beside it."""
    target = out.parent / f"{out.name}.tar.gz"
    new = target.with_suffix(".new")
    with tarfile.open(new, "w:gz") as packed:
        packed.add(out, arcname=out.name)
    new.replace(target)
