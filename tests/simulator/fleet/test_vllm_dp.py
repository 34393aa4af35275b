"""vLLM's balancer of data-parallel ranks as a router of a run; tests/parity/test_features.py has its choices."""

from pathlib import Path

import pytest
import yaml

import scenarios
from simulator.errors import InputError, RouterError
from simulator.fleet.routers.vllm_dp import ApiServer, VllmDp
from simulator.fleet.signals import Signals
from simulator.fleet.windows import Signal
from tests.parity.features import idle
from tests.scenarios.runs.test_runner import small


def test_the_score_by_hand() -> None:
    """Of 3 ranks one has a full cache, one runs the most, and one has no more than what was sent there."""
    signals = Signals([idle(rank) for rank in range(3)])
    signals.show([Signal(1, 1, 1), Signal(0, 4, 0), Signal(0, 0, 0)])  # scores 1 + 1 + 6 x 0.5 = 5, 4 and 0
    server, chosen = ApiServer(0, 2), []
    for _ in range(3):
        rank = server.choose(signals.replicas).index
        server.in_flight[rank] += 1
        chosen.append(rank)
    assert chosen == [2, 2, 2]  # 2 servers: rank 2 scores 0, 2, and 4 as rank 1 does, but the third round starts at it
    signals.show([Signal(0, 9, 0), Signal(0, 9, 0), Signal(0, 0, 0)])
    assert (
        server.choose(signals.replicas).index == 2
    )  # its own three count as 6: published counts replace what it added


@pytest.mark.parametrize("servers", [1, 3])
def test_a_run_hears_of_every_end_and_sees_what_is_published(servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[VllmDp] = []
    started = VllmDp.start

    def start(self: VllmDp, draws: object) -> None:
        made.append(self)
        started(self, draws)  # type: ignore[arg-type]  # it is Draws

    monkeypatch.setattr(VllmDp, "start", start)
    scenario = small(replicas=3, router={"kind": "vllm_dp", "api_server_count": servers}, engine__max_num_seqs=2)
    result = scenarios.run(scenario)
    assert set(result.records.requests.replica.tolist()) == {0, 1, 2}
    router = made[-1]
    assert not router._sent
    assert not any(sum(server.in_flight.values()) for server in router._servers)
    said = yaml.safe_load(result.scenario_yaml)["router"]
    assert said == {"kind": "vllm_dp", "signal_interval_s": 0.1, "api_server_count": servers}
    assert scenarios.run(yaml.safe_load(result.scenario_yaml)).summary == result.summary
    assert scenarios.run(scenario, fast_forward=False).summary == result.summary


def test_how_old_the_loads_are_can_be_said() -> None:
    usual = scenarios.run(small(replicas=3, router="vllm_dp"))
    said = [
        scenarios.run(small(replicas=3, router={"kind": "vllm_dp", "signal_interval_s": interval_s}))
        for interval_s in (0.1, 3.0)
    ]
    replicas = [result.records.requests.replica.tolist() for result in (usual, *said)]
    assert replicas[0] == replicas[1] != replicas[2]


def test_it_stays_in_one_process_and_follows_whole_requests() -> None:
    with pytest.raises(InputError, match="hears at once which requests have ended"):
        scenarios.run(small(replicas=3, router="vllm_dp"), workers=2)
    halves = [{"name": "p", "replicas": 2, "role": "prefill"}, {"name": "d", "replicas": 2, "role": "decode"}]
    with pytest.raises(
        InputError,
        match="router: a router that follows whole requests cannot be combined with prefill and decode apart",
    ):
        scenarios.run(small(fleet=halves, router="vllm_dp"))


def test_a_request_goes_to_the_rank_that_it_asks_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    ranks = ["2", "", "2", "1", "2", ""]
    rows = [f"{0.1 * row},50,{9 + row},{rank}\n" for row, rank in enumerate(ranks)]
    trace.write_text("arrival_time_s,input_tokens,output_tokens,data_parallel_rank\n" + "".join(rows))
    given = small(replicas=3, router="vllm_dp", workload={"trace": {"path": str(trace)}})
    replicas = scenarios.run(given).records.requests.replica.tolist()
    assert [replicas[row] for row in (0, 2, 3, 4)] == [2, 2, 1, 2]
    assert {replicas[1], replicas[5]} == {0, 1}  # where the fewest are, of those that are free to go anywhere
    with pytest.raises(RouterError, match="request 0 asks for data_parallel_rank 2 of 2 ranks"):
        scenarios.run(small(replicas=2, router="vllm_dp", workload={"trace": {"path": str(trace)}}))
