"""Policies that are compared, and the hosts of their engines."""

import scenarios
from tests.traffic import one_class

WORKLOAD_OF_HOSTS = one_class(10, 20, 100, 20)


def test_a_comparison_says_that_its_policies_have_unlike_hosts() -> None:
    """Engines differ in their hosts: what differs between the runs may be these and not the policies."""
    data = {"name": "t", "workload": WORKLOAD_OF_HOSTS, "engine": {"policy": "vllm"}}
    compared = scenarios.compare(data, ["vllm", "vllm_v0"])
    assert list(compared.summaries) == ["vllm", "vllm_v0"], "a host that comes with the policy is no part of its label"
    (note,) = [text for text in compared.notes if "host" in text]
    assert note.startswith("warning: what the host adds to a step differs (vllm 0.3 ms, vllm_v0 1.3 ms and 72 us")
    alike = {**data, "host": {"step_s": 0.001, "per_seq_s": 0}}
    assert not [text for text in scenarios.compare(alike, ["vllm", "vllm_v0"]).notes if "host" in text]
    assert not [text for text in scenarios.compare(data, ["vllm", "static"]).notes if "host" in text]
