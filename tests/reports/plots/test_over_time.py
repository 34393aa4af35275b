"""Pictures of what only some runs have: KV by request, waits by class, prefix hits, replicas side by side."""

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from reports.picture import styles
from reports.plots.fairness import (
    GAP,
    REPLICA_BUCKETS,
    balance,
    fairness,
    has_classes,
    loads,
    parts_between_gaps,
    waits_by_class,
)
from reports.plots.prefix_cache import hit_rate, layout, prefix_hits
from reports.plots.timeline import LARGEST, occupancy, occupied
from reports.slots import stays
from scenarios.runs.storage.run_folder import read_run
from simulator.metrics.latency import ttft_s
from simulator.results.records import LifeColumns, Records
from simulator.results.shared_prefixes import PrefixColumns, shared_prefixes
from tests.columns import as_floats, as_ints
from tests.reports.plots.test_pictures import everything
from tests.reports_maker import continuous, static

LOOK = styles([("a", "continuous")])


def shared() -> dict[str, Any]:
    """Three replicas, and prompts of which half are shared."""
    lengths = {"dist": "fixed", "value": 400}
    chat = {"name": "chat", "arrival": {"process": "poisson", "rate": 12}, "input": lengths,
            "output": {"dist": "fixed", "value": 60}, "prefix": {"groups": 2, "tokens": 200}}  # fmt: skip
    return {
            "name": "three", "model": "llama-3.1-8b", "hardware": {"gpu": "h200"}, "cost": {"kind": "roofline"},
            "workload": {"requests": 120, "classes": [chat]}, "replicas": 3,
            "engine": {"policy": "chunked_prefill", "enable_prefix_caching": True},
        }  # fmt: skip


@cache
def fleet() -> Records:
    return scenarios.run(shared()).records


def test_no_line_crosses_a_time_without_requests() -> None:
    line = np.array([1.0, np.nan, 2.0, *[np.nan] * GAP, 3.0, np.nan, np.nan, 4.0])
    assert [part.tolist() for part in parts_between_gaps(line)] == [[0, 2], [3 + GAP, 6 + GAP]]
    assert parts_between_gaps(np.full(3, np.nan)) == []


def test_kv_of_requests_adds_up_to_what_is_in_use() -> None:
    """Without a cache and without padding every block in use is some request's."""
    records = continuous(80)
    everyone = stays(records)
    end_s = float(everyone.end_s.max())
    found = occupied(records, everyone, 0.2 * end_s, 0.6 * end_s)
    told = found.largest.sum(axis=0) + found.others
    assert found.largest.shape[0] == LARGEST == len(found.rows)
    busy = found.used > 5
    assert busy.sum() > 50
    assert np.abs(told[busy] / found.used[busy] - 1).mean() < 0.1
    areas = found.largest.sum(axis=1)
    assert (np.diff(areas) <= 0).all(), "the largest first"


def test_kv_that_static_batches_reserve_is_shown_as_such() -> None:
    records = static(60)
    everyone = stays(records)
    found = occupied(records, everyone, 0.0, float(everyone.end_s.max()))
    told = found.largest.sum(axis=0) + found.others
    assert told.sum() < 0.8 * found.used.sum()
    said = everything(occupancy([("a", records)], LOOK))
    assert "taken, not filled: reserved, shared or cached" in said
    assert "largest: request" in said


def test_waits_of_a_class_are_means_over_its_own_requests() -> None:
    records = continuous(90, rate=20.0, classes=("chat", "batch"))
    end_s = float(records.requests.arrival_s.max()) + 1.0
    found = waits_by_class(records, as_floats([0.0, end_s]))
    chat = records.requests.class_index == 0
    assert found["chat"][0] == pytest.approx(1e3 * ttft_s(records)[chat].mean())
    assert set(found) == {"chat", "batch"}
    assert has_classes(records)
    assert not has_classes(continuous(10))
    said = everything(fairness([("a", records)]))
    for text in ("chat", "batch", "mean TTFT", "time of arrival (s)"):
        assert text in said
    late = waits_by_class(records, as_floats([end_s, end_s + 1]))
    assert np.isnan(late["chat"]).all(), "nothing came"


def test_hits_of_all_time_are_the_runs_own_rate() -> None:
    result = fleet()
    edges = np.linspace(0.0, float(np.nanmax(result.requests.scheduled_s)) + 1.0, 11)
    each, so_far = hit_rate(result, edges)
    hits, asked = result.requests.cached_tokens.sum(), result.requests.input_tokens.sum()
    assert 0 < so_far[-1] == pytest.approx(100 * hits / asked)
    assert np.nanmax(each) <= 100.0
    assert "prompt tokens from the cache (%)" in everything(prefix_hits([("a", result)], LOOK))


def test_loads_of_replicas_add_up() -> None:
    records = fleet()
    end_s = float(records.step_end_s.max())
    found = loads(records, end_s)
    assert found.shape == (3, REPLICA_BUCKETS)
    rows = records.rows
    held = ((rows.running + rows.waiting) * (rows.end_s - rows.start_s)).sum()
    assert found.sum() * end_s / REPLICA_BUCKETS == pytest.approx(held, rel=1e-6)
    said = everything(balance([("a", records), ("alone", continuous(5))]))
    assert "requests at the replica" in said
    assert "of 3" in said
    assert "alone" not in said, "one replica has nothing to be compared with"


def test_replicas_that_are_not_there_are_blank() -> None:
    records, nan = fleet(), float("nan")
    end_s = float(records.step_end_s.max())
    lives = LifeColumns(
        as_ints([2]), as_floats([end_s / 2]), as_floats([end_s / 2]), as_floats([nan]), as_floats([nan])
    )
    found = loads(replace(records, lives=lives), end_s)
    assert np.isnan(found[2, : REPLICA_BUCKETS // 2 - 1]).all()
    assert np.isfinite(found[2, REPLICA_BUCKETS // 2 + 1 :]).all()
    assert np.isfinite(found[:2]).all()


def test_boxes_of_the_prefix_tree_lie_inside_their_parents_and_beside_their_siblings() -> None:
    tree = PrefixColumns(
        *(
            as_ints(column)
            for column in ([-1, 0, 0, 1, 1], [0, 0, 0, 512, 512], [0, 512, 64, 900, 700], [10, 6, 3, 2, 4])
        )
    )
    assert layout(tree).tolist() == [0.0, 0.0, 6.0, 4.0, 0.0]
    assert tree.repeated_tokens == 512 * 5 + 64 * 2 + 388 + 188 * 3


def test_the_prefix_tree_is_drawn_of_a_run_and_of_its_folder(tmp_path: Path) -> None:
    result = scenarios.run(shared())
    picture = result.plot("prefix_tree")
    said = everything(picture)
    assert "Prefixes that prompts share" in said
    assert "2 prefixes of two requests or more" in said
    asked = 100 * result.records.requests.cached_tokens.sum() / result.records.requests.input_tokens.sum()
    assert f"the cache found {asked:.3g} %" in picture.caption
    assert any("tokens 0 to 200" in spot.words for spot in picture.spots)
    saved = read_run(result.save(tmp_path / "run"))
    drawn = shared_prefixes(result.workload, result.records)
    assert saved.prefixes is not None
    assert drawn is not None
    for field in fields(PrefixColumns):
        assert getattr(saved.prefixes, field.name).tolist() == getattr(drawn, field.name).tolist()
