"""Tensor parallelism: two processes that share a model's heads give the logits of one that has them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.backend import local_model
from simulator.errors import InputError
from simulator.hardware.models import custom_model
from tests.gpu_maker import CLOSE, TINY

PROGRAM = """
import sys
import torch.distributed as distributed
from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.work import ScheduledPart as Part, Work
from simulator.hardware.models import custom_model

BASE = {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 512, "max_model_len": 256}
STEPS = [Work((), (Part(0, 0, [5, 6, 7, 8, 9], [1, 2]), Part(1, 0, [40, 41], [3]))), Work((Part(0, 5, [3], [1, 2]),))]

def logits(model, share):
    backend = Backend(model, Cpu(1), 32, 4, seed=3, share=share)
    return [backend.logits(work) for work in STEPS]

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
for extra in ({}, {"experts": 4, "active_experts": 2}, {"biases": True, "gated_mlp": False, "positions": 256}):
    model = custom_model({**BASE, **extra})
    mine = logits(model, (rank, 2))
    if rank == 0:
        whole = logits(model, (0, 1))
        print(max(float((a - b).abs().max()) for a, b in zip(mine, whole, strict=True)))
distributed.destroy_process_group()
"""


def test_two_processes_over_gloo(tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    root = Path(__file__).parents[2]
    commands = [[sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "meeting")] for rank in (0, 1)]
    running = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    said = [process.communicate(timeout=240) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    errors = [float(line) for line in said[0][0].split()]
    assert len(errors) == 3
    assert max(errors) < CLOSE


def test_a_share_has_a_part_of_the_heads() -> None:
    local = local_model(TINY, 2)
    assert (local.heads, local.kv_heads, local.intermediate, local.head_dim) == (2, 1, 48, TINY.head_dim)
    with pytest.raises(InputError, match="not evenly shared by 3"):
        local_model(custom_model({**{name: getattr(TINY, name) for name in TINY.__slots__}}), 3)
