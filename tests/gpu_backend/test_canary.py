"""Times as ratios to a canary's: what slows both cancels out. And what a GPU tells of itself through NVML."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.backend import Backend
from gpu_backend.device import LIBRARY, Cpu, Nvml
from gpu_backend.probes import Controls, Grid, control_steps
from tests.gpu_maker import TINY


class Clock:
    """A thread's clock on a machine whose speed changes from one call to the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, speeds: list[float]) -> None:
        self.now_s, self.calls, self._speeds = 0.0, 0, speeds
        monkeypatch.setattr("gpu_backend.device.time.thread_time", lambda: self.now_s)

    def work(self, seconds: float) -> Any:
        def call() -> None:
            self.now_s += seconds * self._speeds[self.calls % len(self._speeds)]
            self.calls += 1

        return call


def test_what_slows_both_cancels_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [1.0])
    device = Cpu()
    assert device.watch(clock.work(0.004)) == pytest.approx(0.004)
    assert device.seconds(clock.work(0.01)) == pytest.approx(0.01)
    clock._speeds = [1.7]
    assert device.seconds(clock.work(0.01)) == pytest.approx(0.01)
    assert device.canary == pytest.approx(1.7)
    assert device.check() == pytest.approx(1.7)


def test_a_speed_that_changes_meanwhile_is_seen_by_both_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [1.0])
    device = Cpu()
    device.watch(clock.work(0.004))
    clock.calls, clock._speeds = 0, [1 + 0.02 * step for step in range(50)]  # slower and slower
    assert device.seconds(clock.work(0.01)) == pytest.approx(0.01, rel=1e-3)


def test_two_processes_speak_in_the_same_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lockstep on a machine half as fast as when its profile was measured."""
    clock = Clock(monkeypatch, [2.0])
    device = Cpu()
    assert device.watch(clock.work(0.004), 0.004) == 0.004
    assert device.seconds(clock.work(0.01)) == pytest.approx(0.01)


def test_a_long_step_is_not_repeated_nine_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [1.0])
    device = Cpu()
    device.watch(clock.work(0.004))
    clock.calls = 0
    device.seconds(clock.work(3.0))
    assert clock.calls == 1 + 1 + 2 * 3, "once untimed, three times between canaries"


def test_canary_controls_and_warm_up_touch_no_page() -> None:
    backend = Backend(TINY, Cpu(1), 64, 4, 8)
    backend.pool.kv[:, 1:].fill_(7.0)
    backend.canary()()
    backend.warm_up(4, 64)
    controls = Controls(backend, control_steps(Grid(8, 400, 64)))
    assert list(controls.timed()) == ["decode", "prefill", "mixed"]
    assert bool((backend.pool.kv[:, 1:] == 7.0).all())


class Library:
    """NVML as its header has it: 0 is success, figures go through pointers."""

    def __init__(self, found: int = 0) -> None:
        self.found = found

    def nvmlInit_v2(self) -> int:  # noqa: N802 - its name
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, handle: Any) -> int:  # noqa: N802 - its name
        assert pci == b"00000000:0a:00.0"
        return self.found

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, value: Any) -> int:  # noqa: N802 - its name
        value._obj.value = {1: 1980, 2: 2619}[kind]
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:  # noqa: N802 - its name
        value._obj.value = 650_500
        return 0

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, value: Any) -> int:  # noqa: N802 - its name
        return 3  # not supported


def test_clocks_and_power_of_a_gpu() -> None:
    names: list[str] = []

    def load(name: str) -> Library:
        names.append(name)
        return Library()

    pulse = Nvml("00000000:0a:00.0", load).pulse()
    assert (pulse.sm_mhz, pulse.memory_mhz, pulse.power_w) == (1980.0, 2619.0, 650.5)
    assert isnan(pulse.celsius), "what it does not tell"
    assert names == [LIBRARY]
    assert all(isnan(value) for value in Nvml("00000000:0a:00.0", lambda name: Library(6)).pulse())
    assert all(isnan(value) for value in Nvml("x", lambda name: (_ for _ in ()).throw(OSError())).pulse())
