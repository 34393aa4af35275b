"""Sessions, closed loops and clients as they are drawn: what is whose, and that nobody moves another's draws."""

from math import inf
from typing import Any

import numpy as np
import pytest
from scipy import stats

from scenarios.generate import GeneratedWorkload, generate
from scenarios.generate.sessions import draw_times
from scenarios.schema.distributions import ExponentialTime, LogNormalTime, UniformTime
from simulator.workload import Workload

LENGTHS = {"input": {"dist": "uniform", "min": 5, "max": 40}, "output": {"dist": "uniform", "min": 2, "max": 30}}
OPEN = {"process": "poisson", "rate": 2.0}
SESSION = {
    "turns": {"dist": "uniform", "min": 1, "max": 4},
    "think_time_s": {"dist": "exponential", "mean_s": 3.0},
    "steps": {"dist": "uniform", "min": 1, "max": 3},
    "tool_time_s": {"dist": "lognormal", "median_s": 0.5, "p99_s": 4.0},
    "tool_tokens": {"dist": "uniform", "min": 100, "max": 200},
}
LOOP = {"process": "closed_loop", "concurrency": 3, "think_time_s": {"dist": "exponential", "mean_s": 2.0}}
CLIENT = {"timeout_s": 5.0, "max_attempts": 3, "jitter": 1.0}


def of_class(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, **LENGTHS, **keys}


def draw(seed: int = 0, **keys: Any) -> Workload:
    return generate(GeneratedWorkload.model_validate(keys), seed)


CHAT = of_class("chat", arrival=OPEN, session=SESSION, client=CLIENT)
AGENT = of_class("agent", arrival=LOOP, session={**SESSION, "context": "independent"})
PLAIN = of_class("plain", arrival={"process": "gamma", "rate": 3.0, "cv": 2.0})
OTHERS: tuple[dict[str, Any], ...] = (
    of_class("x-open", arrival=OPEN),
    of_class("x-sessions", arrival=OPEN, session=SESSION, client={"timeout_s": 1.0}),
    of_class("x-loop", arrival=LOOP, client=CLIENT),
)


def rows_of(workload: Workload, name: str) -> dict[str, list[Any]]:
    """All that is drawn for a class: rows, what they wait for by its name, its pool, its clients."""
    index = workload.class_names.index(name)
    assert workload.request_ids is not None
    pool = [loop.draw(50) for loop in workload.loops]
    found: dict[str, list[Any]] = {}
    for place, one in enumerate([workload, *pool]):
        rows = np.flatnonzero(one.class_index == index)
        for column in ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "delay_s", "turns"):
            values = getattr(one, column)
            assert values is not None
            found[f"{place} {column}"] = values[rows].tolist() if len(rows) else []
        assert one.after_row is not None
        ids, after = one.request_ids or (), one.after_row[rows].tolist()
        found[f"{place} after"] = [None if row < 0 else ids[row] for row in after]
        found[f"{place} names"] = [ids[row] for row in rows.tolist()]
        sessions = one.session_ids
        found[f"{place} sessions"] = [] if sessions is None else [sessions[row] for row in rows.tolist()]
    found["client"] = [workload.clients[index]]
    return {key: values for key, values in found.items() if any(value is not None for value in values)}


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: str(other["name"]))
@pytest.mark.parametrize("name", ["chat", "agent", "plain"])
def test_another_class_moves_no_draw(name: str, other: dict[str, Any]) -> None:
    """Not an arrival, a length, a turn, a think time, a tool's time or a backoff, before or behind it in the list."""
    classes = [CHAT, AGENT, PLAIN]
    alone = rows_of(draw(duration_s=20.0, classes=classes), name)
    for more in ([*classes, other], [other, *classes]):
        found = rows_of(draw(duration_s=20.0, classes=more), name)
        for key, values in alone.items():
            assert values in found.values(), key


def test_a_longer_run_moves_no_draw() -> None:
    short, long = (rows_of(draw(duration_s=s, classes=[CHAT, AGENT]), "chat") for s in (10.0, 30.0))
    for key, values in short.items():
        assert long[key][: len(values)] == values, key


def test_a_larger_pool_only_adds() -> None:
    (loop,) = draw(duration_s=9.0, classes=[AGENT]).loops
    small, large = loop.draw(20), loop.draw(300)
    for column in ("input_tokens", "output_tokens", "max_tokens", "delay_s", "after_row", "turns"):
        ours, theirs = getattr(small, column), getattr(large, column)
        assert np.array_equal(ours, theirs[: len(ours)]), column
    assert (small.request_ids or [])[:9] == (large.request_ids or [])[:9]


def test_a_conversation_grows_by_answers_and_new_tokens() -> None:
    """prompt k + 1 = prompt k + answer k + new tokens: of the user, or of a tool."""
    drawn = draw(duration_s=60.0, classes=[of_class("chat", arrival=OPEN, session=SESSION)])
    assert drawn.after_row is not None
    assert drawn.turns is not None
    later = np.flatnonzero(drawn.after_row >= 0)
    before = drawn.after_row[later]
    new = (
        drawn.input_tokens[later]
        - drawn.input_tokens[before]
        - np.minimum(drawn.output_tokens, drawn.max_tokens)[before]
    )
    assert set(np.unique(new)) <= {*range(5, 41), *range(100, 201)}
    assert (new >= 100).any()
    assert (new < 41).any()
    assert np.all(drawn.turns[later] == drawn.turns[before] + 1)
    firsts = drawn.input_tokens[drawn.after_row < 0]
    assert firsts.min() >= 5
    assert firsts.max() <= 40


def test_independent_turns_do_not_grow() -> None:
    session = {**SESSION, "context": "independent", "tool_tokens": None}
    drawn = draw(duration_s=60.0, classes=[of_class("a", arrival=OPEN, session=session)])
    assert drawn.input_tokens.max() <= 40
    assert drawn.content is None


def test_a_shared_prefix_stands_once_in_a_conversation() -> None:
    """All turns of a session have the first turn's system prompt, whose tokens are counted once."""
    prefix = {"groups": 3, "tokens": 64}
    plain = draw(duration_s=60.0, classes=[of_class("chat", arrival=OPEN, session=SESSION)])
    drawn = draw(duration_s=60.0, classes=[of_class("chat", arrival=OPEN, session=SESSION, prefix=prefix)])
    assert np.array_equal(drawn.input_tokens, plain.input_tokens + 64)
    assert drawn.content is not None
    assert drawn.session_ids is not None
    groups: dict[str | None, set[str | None]] = {}
    for session, content in zip(drawn.session_ids, drawn.content, strict=True):
        assert content is not None
        assert content.conversation == session
        groups.setdefault(session, set()).add(content.prefix_group)
    assert all(len(found) == 1 for found in groups.values())
    assert len({group for found in groups.values() for group in found}) == 3


def test_the_limit_of_context_ends_a_session() -> None:
    session = {**SESSION, "turns": 40, "max_context_tokens": 500}
    drawn = draw(duration_s=30.0, classes=[of_class("chat", arrival=OPEN, session=session)])
    whole = draw(
        duration_s=30.0, classes=[of_class("chat", arrival=OPEN, session={**session, "max_context_tokens": None})]
    )
    context = drawn.input_tokens + np.minimum(drawn.output_tokens, drawn.max_tokens)
    assert context.max() <= 500
    kept = dict(zip(whole.request_ids or (), whole.input_tokens.tolist(), strict=True))
    assert all(kept[name] == tokens for name, tokens in zip(drawn.request_ids or (), drawn.input_tokens, strict=True))
    assert drawn.after_row is not None
    assert np.all(drawn.after_row < np.arange(len(drawn)))


@pytest.mark.parametrize("requests", [1, 7, 100])
def test_so_many_requests_and_no_more(requests: int) -> None:
    drawn = draw(requests=requests, classes=[CHAT, PLAIN])
    assert len(drawn) == requests
    assert drawn.until_s == inf
    (loop,) = draw(requests=requests, classes=[AGENT]).loops
    assert loop.requests == requests


def test_one_loop_may_serve_several_classes() -> None:
    """The users of a workload's closed loop deal their requests to the classes by share."""
    drawn = draw(requests=3000, arrival=LOOP, classes=[of_class("a", share=1.0), of_class("b", share=3.0)])
    (loop,) = drawn.loops
    share = float((loop.draw(3000).class_index == 1).mean())
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / 3000) ** 0.5


@pytest.mark.parametrize(
    ("config", "law"),
    [
        (ExponentialTime(dist="exponential", mean_s=3.0), stats.expon(scale=3.0)),
        (UniformTime(dist="uniform", min_s=1.0, max_s=4.0), stats.uniform(1.0, 3.0)),
        (
            LogNormalTime(dist="lognormal", median_s=2.0, p99_s=20.0),
            stats.lognorm(np.log(10) / stats.norm.ppf(0.99), scale=2.0),
        ),
    ],
)
def test_times_have_their_law(config: Any, law: Any) -> None:
    """Kolmogorov-Smirnov over 20 seeds, and a prefix is a prefix."""
    p_values = [
        stats.kstest(draw_times(config, np.random.default_rng(seed), 2000), law.cdf).pvalue for seed in range(20)
    ]
    assert min(p_values) > 0.001 / 20
    few, many = (draw_times(config, np.random.default_rng(1), count) for count in (10, 1000))
    assert np.array_equal(few, many[:10])


def test_jitter_belongs_to_request_and_attempt() -> None:
    client = draw(duration_s=9.0, classes=[CHAT]).clients[0]
    waits = np.array([[client.backoff(number, attempt) for attempt in (1, 2)] for number in range(4000)])
    for attempt in (0, 1):
        whole = client.backoff_s * client.backoff_factor**attempt
        assert stats.kstest(waits[:, attempt] / whole, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(waits.T)[0, 1]) < 4 / np.sqrt(4000)
    other = draw(seed=1, duration_s=9.0, classes=[CHAT]).clients[0]
    assert other.backoff(3, 1) != client.backoff(3, 1)
