"""Clock, power and temperature of a GPU from NVML, through ctypes: some 20 microseconds a figure, nothing to install.

Names and numbers are those of nvml.h. Where the library, the device or a figure is missing, the figure is NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple

_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # nvmlTemperatureSensors_t
LIBRARY = "libnvidia-ml.so.1"


class Pulse(NamedTuple):
    """A GPU at one moment: clocks in MHz, power in watts, temperature in degrees Celsius."""

    sm_mhz: float = nan
    memory_mhz: float = nan
    power_w: float = nan
    celsius: float = nan


class Nvml:
    """One GPU, found by its PCI address; every figure is NaN where NVML does not answer."""

    def __init__(self, pci: str, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        try:
            library = load(LIBRARY)
            if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
                pci.encode(), ctypes.byref(self._handle)
            ):
                return
        except (OSError, AttributeError):
            return
        self._library = library

    def pulse(self) -> Pulse:
        """The GPU's clocks, power and temperature now."""
        watts = self._ask("nvmlDeviceGetPowerUsage")
        return Pulse(
            self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
            self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
            watts / 1e3,
            self._ask("nvmlDeviceGetTemperature", _GPU_SENSOR),
        )

    def _ask(self, function: str, *arguments: int) -> float:
        if self._library is None:
            return nan
        value = ctypes.c_uint()
        try:
            failed = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return nan
        return nan if failed else float(value.value)
