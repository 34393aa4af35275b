"""Where real traces and measurements are, if here at all: BATCHLAB_SHARED, or ../shared beside the repository."""

import os
from pathlib import Path

import pytest


def root() -> Path:
    """The folder of the shared data, whether it is there or not."""
    return Path(os.environ.get("BATCHLAB_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared(path: str) -> Path:
    """The file or folder `path` of the shared data; skips the test, saying so, where it is absent."""
    found = root() / path
    if not found.exists():
        pytest.skip(f"real data not here: {found} (set BATCHLAB_SHARED to the folder that holds it)")
    return found


def shared_for(scenario: str) -> None:
    """Skips the test where a shipped scenario reads measurements that are absent."""
    if scenario.startswith(("measured-", "blind-")):
        shared("measured/workloads")
    if scenario in ("study-prefix-affinity", "study-routers"):
        shared("traces/mooncake_conversation_trace.jsonl.gz")
