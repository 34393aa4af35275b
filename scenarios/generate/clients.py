"""The clients of a class, as the simulation takes them."""

from __future__ import annotations

from math import inf

from scenarios.schema.client import ClientConfig
from scenarios.streams import stream
from simulator.client import Client


def client_of(config: ClientConfig | None, seed: int, class_name: str) -> Client:
    """Their timeouts and retries, with a random stream of the class's own."""
    if config is None:
        return Client()
    return Client(
        ttft_timeout_s=inf if config.ttft_timeout_s is None else config.ttft_timeout_s,
        timeout_s=inf if config.timeout_s is None else config.timeout_s,
        cancels=config.cancel,
        max_attempts=config.max_attempts,
        backoff_s=config.backoff_s,
        backoff_factor=config.backoff_factor,
        max_backoff_s=inf if config.max_backoff_s is None else config.max_backoff_s,
        jitter=config.jitter,
        stream=int(stream(seed, class_name, "backoff").integers(2**63)),
    )
