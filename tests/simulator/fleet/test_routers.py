"""Routers: the built-in ones by name, a user's own from its file."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

import scenarios
from simulator.errors import InputError
from simulator.fleet.router import Draws, Replicas, RouterFeatures
from simulator.fleet.routers import built_in_routers, load_router
from simulator.fleet.routers.least_loaded import LeastLoaded
from simulator.fleet.routers.round_robin import RoundRobin
from simulator.fleet.windows import serve_by_looks
from tests.scenarios.runs.test_runner import small

STICKY = """
class Sticky:
    def choose(self, request, replicas):
        return replicas[request.input_tokens % len(replicas)]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_router_is_a_file_of_the_folder() -> None:
    assert {"least_loaded", "round_robin"} <= set(built_in_routers())
    folder = Path(__file__).parents[3] / "simulator" / "fleet" / "routers"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(built_in_routers())


def test_each_router_chooses_as_it_says() -> None:
    loads: Any = [SimpleNamespace(index=index, num_unfinished=load) for index, load in enumerate((3, 1, 1))]
    replicas = Replicas(loads)
    request: Any = None
    in_turn = load_router("round_robin")
    assert [in_turn.choose(request, replicas).index for _ in range(4)] == [0, 1, 2, 0]
    assert load_router("round_robin").choose(request, replicas).index == 0  # each run begins anew
    assert load_router("least_loaded").choose(request, replicas).index == 1


def with_loras(index: int, *, loras: str = "", waiting: int = 0, kv: float = 0.0) -> Any:
    return SimpleNamespace(index=index, loras=tuple(loras), max_loras=4, num_waiting=waiting, kv_utilization=kv)


def test_adapters_are_scored_as_llm_d_scores_them() -> None:
    def chosen(asked: str | None, /, *loads: Any, **weights: float) -> list[int]:
        router, request = load_router("lora_affinity", weights), cast("Any", SimpleNamespace(lora=asked))
        return [router.choose(request, Replicas(loads)).index for _ in range(3)]

    full, other, room = with_loras(0, loras="ab"), with_loras(1, loras="cd"), with_loras(2, loras="c")
    assert chosen("b", full, other, room) == [0, 0, 0]  # 1: it is there
    assert chosen("x", full, other, room) == [2, 2, 2]  # 0.8: there is room, as each counts twice
    assert chosen("x", full, other) == [0, 1, 0]  # equals take turns
    assert chosen(None, full, other, room) == [2, 2, 2]
    assert chosen("c", full, other, room) == [1, 2, 1]
    queued = with_loras(0, loras="ab", waiting=3)
    assert chosen("b", queued, room) == [2, 2, 2]  # 1 + 2 x 0 < 0.8 + 2 x 1
    assert chosen("b", queued, room, lora=11) == [0, 0, 0]
    between = with_loras(1, loras="cd", waiting=1)
    assert chosen("b", queued, between, with_loras(2, loras="cd", waiting=4), lora=1, queue=1, kv=0) == [0, 0, 0]
    assert chosen("b", queued, between, with_loras(2, loras="cd", waiting=4), lora=0.7, queue=1, kv=0) == [0, 0, 0]
    assert chosen("b", queued, between, with_loras(2, loras="cd", waiting=4), lora=0.6, queue=1, kv=0) == [1, 1, 1]
    busy = with_loras(0, loras="ab", kv=0.2)
    assert chosen("b", busy, room) == [2, 2, 2]  # 1 + 2 x 0.8 < 0.8 + 2 x 1
    assert chosen("b", busy, room, kv=0.5) == [0, 0, 0]
    with pytest.raises(InputError, match="at least one must be above"):
        load_router("lora_affinity", {"lora": 0, "queue": 0, "kv": 0})


def test_a_users_own_router_runs_and_is_found_beside_the_scenario(tmp_path: Path) -> None:
    write(tmp_path, STICKY)
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump({**small(replicas=3), "router": "mine.py:Sticky"}), encoding="utf-8")
    result = scenarios.run(path)
    rows = result.records.requests
    assert (rows.replica == rows.input_tokens % 3).all()
    again = scenarios.run(yaml.safe_load(result.scenario_yaml))
    assert again.summary == result.summary


def test_a_promise_holds_of_the_choose_that_it_was_made_of() -> None:
    """And not of another that a subclass has: what nothing is known of counts."""

    class Renamed(RoundRobin):
        pass

    class Emptiest(RoundRobin):
        def choose(self, request: Any, replicas: Any) -> Any:
            return min(replicas, key=lambda replica: replica.num_unfinished)

    class Last(RoundRobin):
        reads_loads = False

        def choose(self, request: Any, replicas: Any) -> Any:
            return replicas[-1]

    class Mixed(Emptiest, Last):
        pass

    class Idlest(LeastLoaded):
        def choose(self, request: Any, replicas: Any) -> Any:
            return replicas.least(lambda replica: replica.num_running)

    blind = RouterFeatures(reads_loads=False)
    for made, features in (
        (RoundRobin, blind),
        (Renamed, blind),
        (Emptiest, RouterFeatures()),
        (Last, blind),
        (Mixed, RouterFeatures()),
        (LeastLoaded, RouterFeatures(takes_fewest=True)),
        (Idlest, RouterFeatures()),
    ):
        assert RouterFeatures.of(made) == RouterFeatures.of(made()) == features, made


BLIND_NO_MORE = """
from simulator.fleet.routers.round_robin import RoundRobin

class Mine(RoundRobin):
    def choose(self, request, replicas):
        return min(replicas, key=lambda replica: replica.num_unfinished)
"""


def test_a_router_that_inherits_blindness_and_looks_sees_loads(tmp_path: Path) -> None:
    """Dealt ahead, all requests would find the same loads and go to the first replica."""
    scenario = small(replicas=3)
    mine = scenarios.run({**scenario, "router": f"{write(tmp_path, BLIND_NO_MORE)}:Mine"})
    least = scenarios.run({**scenario, "router": "least_loaded"})
    assert (mine.records.requests.replica == least.records.requests.replica).all()
    assert set(mine.records.requests.replica.tolist()) == {0, 1, 2}


BROKEN = {
    "no such file": (None, "router: no such file"),
    "no class": ("class Stick: pass", "no class 'Sticky'"),
    "no router": ("class Sticky: pass", "Sticky is no router"),
    "syntax": ("class Sticky:\n    def", "cannot be loaded: SyntaxError"),
    "needs arguments": (
        "class Sticky:\n    def __init__(self, n): ...\n    def choose(self, a, b): ...",
        "needs n",
    ),
    "raises": ("class Sticky:\n    def choose(self, a, b):\n        return 1 / 0", r"mine\.py:3: ZeroDivisionError"),
    "chooses nothing": (
        "class Sticky:\n    def choose(self, a, b): ...",
        r"mine\.py: the router chose None for request 0",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_router_is_bad_input_with_its_file(case: str, tmp_path: Path) -> None:
    text, said = BROKEN[case]
    path = tmp_path / "mine.py" if text is None else write(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        scenarios.run({**small(replicas=2), "router": f"{path}:Sticky"})
    assert "mine.py" in str(caught.value)


def test_an_unknown_router_has_the_nearest_name_and_all_names() -> None:
    with pytest.raises(InputError, match="unknown router 'round_robbin'") as caught:
        load_router("round_robbin")
    known = ", ".join(built_in_routers())
    assert f"did you mean round_robin? known: {known}, or path/to/file.py" in str(caught.value)


def test_a_session_stays_and_sessions_spread() -> None:
    loads: Any = [SimpleNamespace(index=index) for index in range(5)]
    replicas, router = Replicas(loads), load_router("session_affinity")
    asks: Any = [SimpleNamespace(row=row, session_id=str(row % 40)) for row in range(120)]
    taken = [router.choose(request, replicas).index for request in asks]
    assert taken[:40] == taken[40:80] == taken[80:]
    assert set(taken) == {0, 1, 2, 3, 4}


def test_a_look_comes_before_the_arrivals_of_its_time() -> None:
    """Looks every second, of which those that no arrival follows are left out."""
    told: list[str] = []
    host: Any = SimpleNamespace(
        give=lambda request, number: told.append(f"give {request.arrival_s:g}"),
        advance=lambda until_s: told.append(f"advance {until_s:g}"),
        look=lambda: told.append("look"),
        finish=lambda: told.append("finish"),
    )
    requests: Any = [SimpleNamespace(arrival_s=at_s) for at_s in (0.0, 1.0, 1.5, 4.0)]
    serve_by_looks(requests, lambda request: 0, host, lambda signals: told.append("show"), 1.0)
    look = ["look", "show"]
    assert told == ["give 0", "advance 1", *look, "give 1", "give 1.5", "advance 4", *look, "give 4", "finish"]


@pytest.mark.parametrize(("wanted", "count"), [(2, 2), (5, 3), (2, 9), (3, 4)])
def test_several_are_different_and_in_random_order(wanted: int, count: int) -> None:
    """Each place is as likely to come first, where all are drawn too: Ray and SGLang break ties of two replicas so."""
    draws = Draws(np.random.Generator(np.random.PCG64(0)))
    drawn = [draws.several(wanted, count) for _ in range(3000)]
    assert {len(set(each)) for each in drawn} == {min(wanted, count)}
    firsts = Counter(each[0] for each in drawn)
    assert all(firsts[place] == pytest.approx(3000 / count, rel=0.2) for place in range(count))
