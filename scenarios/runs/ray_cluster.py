"""Connect to an existing Ray cluster."""

from typing import Any

from simulator.errors import InputError


def is_on_ray(executor: str, workers: int | None, address: str | None) -> bool:
    """Return whether `--executor` asks for Ray. Raises InputError where the three flags do not go together."""
    if workers is not None and workers < 1:
        raise InputError(f"at least one worker is needed, not {workers}", file="--workers")
    if executor not in ("local", "ray"):
        raise InputError(f"unknown executor {executor!r}", file="--executor", hint="allowed: local, ray")
    if executor == "local" and address is not None:
        raise InputError("only --executor ray has an address", file=f"--address {address}")
    return executor == "ray"


def connect(address: str | None) -> Any:
    """Return the module `ray`, connected to the cluster at `address`, else to the one here. Raises InputError."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", file="--executor ray", hint="pip install 'batchlab[ray]'") from None
    if ray.is_initialized():
        return ray
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        what = f"no Ray cluster at {address}" if address else "no Ray cluster is running here"
        hint = f"`ray start --head` starts one, --address names it ({error})"
        raise InputError(what, file="--address", hint=hint) from None
    return ray


def cores(ray: Any) -> int:
    """The cores of the cluster."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))
