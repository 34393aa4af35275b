"""What is worked out together, kept, or written out, is what it was one by one and in general: to the bit."""

import pickle
from copy import deepcopy
from math import inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.profiles import shipped_profiles
from simulator.timing.arithmetic import (
    DECODE_COUNTS,
    PROMPT_COUNTS,
    corrected,
    decode_counts,
    octaves_outside,
    on_many_axes,
    prompt_counts,
)
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, Profile, ProfileCost, read_profile
from simulator.timing.profile.prices import KNOTS_PER_OCTAVE, LONGEST_KNOT, ROWS_TOGETHER, DecodeRows
from simulator.timing.profile.surface import Physics, Surface, SurfaceAxis, decode_features, prompt_features
from tests.profile_maker import apart, profile

ROWS = SurfaceAxis("seqs", (1.0, 3.0, 16.0))
COLUMNS = SurfaceAxis("context", (0.0, 8.0, 64.0, 4096.0))
TABLE = tuple(np.random.default_rng(7).normal(size=12).tolist())
SURFACES = (
    Surface((ROWS, COLUMNS), Physics(7.0, (("seqs", 0.1),), ((("keys", 0.003),), (("chain", 0.02),)), 2.0), TABLE),
    Surface((SurfaceAxis("seqs", (4.0,)), SurfaceAxis("context", (16.0,))), Physics(7.0), TABLE[:1]),
)
COUNTS = st.one_of(st.integers(1, 20), st.sampled_from([16, 17, 255, 100_000]))
VALUES = st.one_of(st.floats(0.0, 1e5), st.sampled_from([0.0, 8.0, 64.0, 4096.0, nextafter(4096.0, inf), 1e9]))
MADE = {"made": profile(), "apart": profile(attention={**apart(), "beside": 2.0}, experts=None)}
NAMES = [*MADE, "h200-llama-3.1-8b", "a100-80gb-llama-3.1-8b", "rtx-4090-llama-3.1-8b"]


def read(name: str) -> Profile:
    return MADE.get(name) or read_profile(shipped_profiles()[name])


def lines_of_one(of: Profile, seqs: int) -> tuple[list[float], list[float], list[float]]:
    """Bounds, seconds at nought and slopes of the lines of one number of decodes, worked out for it alone."""
    decode = of.attention.decode
    octaves = np.log2(LONGEST_KNOT)
    knots = np.unique(np.round(2.0 ** np.linspace(0.0, octaves, int(octaves * KNOTS_PER_OCTAVE) + 1)))
    knots = np.union1d(knots, np.asarray(decode.surface.axes[1].values)[1:])
    us = decode.us_many(np.broadcast_to(float(seqs), knots.shape), knots)
    seconds = of.layers * 1e-6 * us
    slope = np.diff(seconds) / np.diff(knots) / seqs
    first = seconds[:-1] - slope * knots[:-1] * seqs
    return [*(knots[1:-1] * seqs).tolist(), inf], first.tolist(), slope.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_rows_tabulated_together_are_those_tabulated_alone(name: str) -> None:
    of = read(name)
    rows = DecodeRows(of.attention.decode, of.layers)
    for seqs in (1, 2, 31, 32, 33, 100, 256, 257, 1000):
        bounds, first_s, slope_s = rows.lines(seqs)
        assert (bounds.tolist(), first_s.tolist(), slope_s.tolist()) == lines_of_one(of, seqs)


def test_rows_do_not_depend_on_which_was_asked_for_first() -> None:
    decode, most = profile().attention.decode, 2 * ROWS_TOGETHER
    forth, back = DecodeRows(decode, 2), DecodeRows(decode, 2)
    upwards = [forth.lines(seqs) for seqs in range(1, most + 1)]
    downwards = [back.lines(seqs) for seqs in range(most, 0, -1)]
    assert upwards == downwards[::-1]


@pytest.mark.parametrize("surface", SURFACES)
@given(COUNTS, VALUES)
def test_a_surface_over_a_count_says_what_the_general_one_says(surface: Surface, count: int, value: float) -> None:
    physics: float = surface.physics.us(decode_features(count, value))
    correction = on_many_axes(surface.correction, [axis.knots for axis in surface.axes], (count, value))
    places = zip(surface.axes, (count, value), strict=True)
    outside = sum([octaves_outside(axis.values[0], axis.values[-1], axis.unit, place) for axis, place in places], 0.0)
    general = corrected(physics, correction, outside)
    counts = decode_counts(count, value)
    kept = surface.lookup(DECODE_COUNTS)
    assert kept.us((count, value), counts) == general
    assert kept.us_of_count(count, value, counts) == general
    assert kept.us_of_count(count, value, counts) == general, "again, from what was kept"


def test_a_lookup_needs_every_count_of_the_physics() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        Physics(7.0, (("tiles", 1.0),)).kernel(DECODE_COUNTS)


@given(
    st.integers(1, 9), st.integers(1, 9000), st.integers(0, 9000), st.integers(0, 400), st.floats(1.0, 1e5),
    st.floats(100.0, 1e6),
)  # fmt: skip
def test_counts_of_one_step_are_those_of_arrays(
    chunks: int, tokens: int, cached: int, seqs: int, context: float, knee_keys: float
) -> None:
    each, tokens = tokens, chunks * tokens
    pairs, mean = float(chunks * each * (cached + each)), context if seqs else 0.0
    counts = prompt_counts(chunks, tokens, pairs, each + cached, seqs, mean, knee_keys)
    columns = np.array([[chunks], [tokens], [pairs], [each + cached], [seqs], [mean], [knee_keys]], dtype=np.float64)
    features = prompt_features(*columns)
    assert tuple(features) == PROMPT_COUNTS
    assert np.ravel(list(features.values())).tolist() == pytest.approx(counts, rel=1e-12)


@pytest.mark.parametrize("name", ["made", "a100-80gb-llama-3.1-8b", "rtx-4090-llama-3.1-8b"])
@given(st.lists(st.integers(1, 60_000), min_size=2, max_size=40), st.booleans())
def test_what_unequal_contexts_cost_is_the_tables_in_general(name: str, contexts: list[int], alone: bool) -> None:
    skew = SKEWS[name]
    seqs, total, longest = len(contexts), sum(contexts), max(contexts)
    squares = sum(context * context for context in contexts)
    shape = StepShape(seqs, total, prefill_tokens=0 if alone else 9, decode_longest=longest, decode_squares=squares)
    excess = seqs * longest - total
    if not excess:
        assert skew.us(shape) == 0.0
        return
    spread = (seqs * squares - total * total) / (excess * excess)
    share = spread / (1.0 + spread)
    knots, places = [skew.seqs.knots, skew.share.knots], [seqs, share]
    if not alone:
        knots.append(skew.context.knots)
        places.append(total / seqs / (1.0 + 3.0 * share))
    table = skew.decode if alone else skew.mixed
    assert skew.us(shape) == on_many_axes(table, knots, places) * excess / seqs


def test_huge_contexts_are_divided_as_whole_numbers_are() -> None:
    """Sums of squares beyond the 53 bits of a float, which a quotient in C would round before it divides."""
    skew = SKEWS["made"]
    contexts = [341_318_676, 353_534_732, 449_821_315, 303_804_370, 212_718_629]
    seqs, context, longest = len(contexts), sum(contexts), max(contexts)
    squares = sum(each * each for each in contexts)
    above, below = seqs * squares - context**2, (seqs * longest - context) ** 2

    def extra(spread: float) -> float:
        table = on_many_axes(skew.decode, (skew.seqs.knots, skew.share.knots), (seqs, spread / (1.0 + spread)))
        return table * (seqs * longest - context) / seqs

    found = skew.us(StepShape(seqs, context, decode_longest=longest, decode_squares=squares))
    assert found == extra(above / below)
    assert found != extra(float(above) / float(below)), "else these contexts would not tell"


SKEWS = {name: skew for name in NAMES if (skew := read(name).skew) is not None}


def shapes() -> list[StepShape]:
    """Steps of decodes, of prompts and of both, at counts that come again."""
    rng = np.random.default_rng(3)
    found = []
    for seqs, tokens in rng.integers((0, 0), (70, 900), (200, 2)).tolist():
        shape = StepShape(seqs, 700 * seqs, decode_longest=900 if seqs else 0, decode_squares=800**2 * seqs)
        if tokens > 300 or not seqs:
            tokens += 1
            shape = shape._replace(prefill_seqs=1, prefill_tokens=tokens, prefill_context=tokens + 64)
            shape = shape._replace(prefill_pairs=tokens * 64 + tokens * (tokens + 1) // 2, prefill_longest=tokens + 64)
        found.append(shape)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_cost_that_has_priced_others_prices_alike(name: str) -> None:
    """What it keeps changes nothing, and what of it a copy or a pickle takes along."""
    of = read(name)
    used = ProfileCost(of)
    seconds = [used.step_s(shape) for shape in shapes()]
    assert [used.step_s(shape) for shape in shapes()] == seconds
    for copy in (deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert copy == used
        assert [copy.step_s(shape) for shape in shapes()] == seconds
    for shape, alone_s in list(zip(shapes(), seconds, strict=True))[::10]:
        assert ProfileCost(read(name)).step_s(shape) == alone_s


@pytest.mark.parametrize("name", NAMES)
def test_contexts_are_counted_only_where_their_spread_costs(name: str) -> None:
    cost = ProfileCost(read(name))
    even = StepShape(9, 4000, prefill_seqs=1, prefill_tokens=64, prefill_context=64, prefill_pairs=2080)
    spread = even._replace(decode_longest=3000, decode_squares=9_500_000)
    assert cost.wants_context_stats == (cost.step_s(spread) != cost.step_s(even))
    assert not ProfileCost(cost.profile, Options(skew=False)).wants_context_stats
