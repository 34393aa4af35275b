"""SGLang's share of memory is a key of SGLang's alone."""

import pytest

import scenarios
from simulator.errors import InputError


def test_sglangs_share_is_refused_under_another_engine() -> None:
    scenario = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100", "mem_fraction_static": 0.85},
        "engine": {"policy": "vllm"},
        "workload": {
            "requests": 1,
            "arrival": {"process": "closed_loop", "concurrency": 1},
            "classes": [{"name": "a", "input": {"dist": "fixed", "value": 9}, "output": {"dist": "fixed", "value": 2}}],
        },
    }
    with pytest.raises(InputError, match="is SGLang's share of memory, not that of vllm"):
        scenarios.run(scenario)
