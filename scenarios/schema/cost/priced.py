"""The scenario as its cost model sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulator.errors import InputError
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model
    from simulator.timing.host import Host


_HOST_KEYS = {"host_s": "step_s", "host_per_seq_s": "per_seq_s"}


def host_key(key: str) -> str | None:
    """A hint for the host's times, which stand at the top level for all kinds of cost; None for any other word."""
    return f"it is `host: {{{_HOST_KEYS[key]}: ...}}`, at the top level" if key in _HOST_KEYS else None


class _Hardware(Protocol):
    @property
    def tensor_parallel(self) -> int: ...

    @property
    def enable_expert_parallel(self) -> bool: ...


class _Engine(Protocol):
    @property
    def policy(self) -> str: ...

    @property
    def release(self) -> str | None:
        """The release of the policy's server; None for the newest."""

    def parameter(self, key: str, default: Any = None) -> Any:
        """A parameter of the policy: as given, or its default; `default` where it has neither."""


class Priced(Protocol):
    """A scenario, as its cost model sees it."""

    @property
    def hardware(self) -> _Hardware: ...

    @property
    def engine(self) -> _Engine: ...

    @property
    def host(self) -> object | None:
        """The host as given; None where nothing is."""

    def resolve_host(self) -> Host:
        """The host as given, completed by the engine's."""

    def resolve_model(self) -> Model: ...

    def resolve_gpu(self) -> Gpu: ...

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An error about a key (dotted, as `cost.path`), placed where the scenario's source wrote it."""
