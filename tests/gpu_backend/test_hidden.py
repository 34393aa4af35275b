"""Steps launched kernel by kernel are timed by the device alone, however slow the host: on a queue of known prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.backend import EAGER, GRAPH, Backend
from gpu_backend.device import LONGEST_WAIT_S, timed
from gpu_backend.executor import DeviceExecutor
from gpu_backend.probes import Grid
from gpu_backend.session import profile
from gpu_backend.work import ScheduledPart, Work
from simulator.memory.blocks import BlockManager
from simulator.simulate import simulate
from tests.gpu_backend.queued import KERNEL_S, LAUNCH_S, Queue, QueuedGpu, Reserving
from tests.gpu_maker import TINY, policy_maker
from tests.laws.scenarios import Memory, make_workload


def kernels(queue: Queue, count: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(count):
            queue.launch(KERNEL_S)

    return work


def test_a_host_ten_times_slower_than_the_device_is_not_in_the_time() -> None:
    queue = Queue()
    exposed = kernels(queue, 400)
    first = queue.mark()
    exposed()
    assert queue.between(first, queue.mark()) == pytest.approx(400 * LAUNCH_S, rel=0.01), "as it would be counted"
    found = timed(queue, exposed, 0.0)
    assert found.seconds == pytest.approx(400 * KERNEL_S)
    assert found.launch_s == pytest.approx(400 * LAUNCH_S)
    assert found.is_hidden


@pytest.mark.parametrize("can_capture", [True, False])
def test_what_does_not_fit_into_the_queue_becomes_a_graph(can_capture: bool) -> None:
    """The host waits for a place in the queue, and the wait ends before all is launched."""
    device = QueuedGpu(depth=100, can_capture=can_capture)
    x = torch.zeros(1)
    found = device.timed(lambda: [x.add_(1) for _ in range(400)], EAGER)
    assert found.is_hidden == can_capture
    assert (found.seconds == pytest.approx(400 * KERNEL_S)) == can_capture
    assert found.launch_s < 2 * LONGEST_WAIT_S


def test_graphs_do_not_wait_for_the_launches_of_steps() -> None:
    """What is remembered of one kind says nothing of another: a replay behind an eager step is done once."""
    device, x = QueuedGpu(), torch.zeros(1)
    done: list[int] = []
    for _ in range(3):
        device.timed(lambda: [x.add_(1) for _ in range(300)], EAGER)
    before = device.queue.clock()
    device.timed(device.capture(lambda: done.append(1)), GRAPH)
    assert len(done) == 1
    assert device.queue.clock() - before < 300 * LAUNCH_S


def backend(device: QueuedGpu, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Backend:
    monkeypatch.setattr("gpu_backend.attention.torch_attention.TorchAttention", Reserving)
    return Backend(TINY, device, 256, 4, seed=3, **more)


def step(context: Sequence[int], chunk: int = 0) -> Work:
    """Decodes of so many KV tokens, and a chunk."""
    ends = np.cumsum([0, *[-(-keys // 4) for keys in context]]) + 1
    parts = [
        ScheduledPart(row, keys - 1, [row + 5], list(range(ends[row], ends[row + 1])))
        for row, keys in enumerate(context)
    ]
    prompt = ScheduledPart(len(parts), 0, [7] * chunk, list(range(ends[-1], ends[-1] + -(-chunk // 4))))
    return Work(tuple(parts), (prompt,) if chunk else ())


def test_decodes_beyond_the_longest_graph_take_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager for want of a graph, or mixed: the device's time is the sum of its kernels, some tens of them a layer."""
    device = QueuedGpu()
    made = backend(device, monkeypatch, graphs=(1, 2, 4), max_graph_context=64)
    assert made.captures
    captured = made.run(step([40, 60]))
    beyond = made.run(step([40, 100]))
    mixed = made.run(step([40, 100], chunk=9))
    assert captured.host_s < beyond.host_s / 5, "a graph is one launch"
    eager = Backend(TINY, QueuedGpu(), 256, 4, seed=3)
    for work, found in ((step([40, 100]), beyond), (step([40, 100], 9), mixed)):
        counted: list[float] = []
        forward = eager.forward(work)
        assert isinstance(eager.device, QueuedGpu)
        eager.device._sent(forward, counted.append)
        assert found.device_s == pytest.approx(sum(counted))
        assert found.device_s == pytest.approx(len(counted) * KERNEL_S)
        assert len(counted) * LAUNCH_S > 5 * found.device_s, "the host is what such a step would wait for"
        assert found.is_hidden


def test_steps_that_could_not_be_hidden_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a lockstep and in a profile: kept, and not counted."""
    for can_capture in (True, False):
        device = QueuedGpu(depth=20, can_capture=can_capture)
        executor = DeviceExecutor(Backend(TINY, device, 255, 4, seed=3))
        simulate(
            make_workload([0.0, 0.0], [(5, 4), (12, 3)]),
            make_policy=policy_maker("chunked_prefill"),
            kv=Memory(256, 4, 0),
            make_executor=lambda executor=executor: executor,  # type: ignore[misc] # a default is not inferred
            make_blocks=BlockManager,
        )
        assert [each.is_steady for each in executor.measured] == [can_capture] * len(executor.measured)
        found = profile(Backend(TINY, device, 64, 4), Grid(1, 8, 8), kernels=False)
        assert found.flagged == (0 if can_capture else len(found.rows))
