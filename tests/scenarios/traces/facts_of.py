"""Facts of columns that are in memory as a whole."""

from scenarios.traces.inspect import ArrivalFacts, ArrivalSums, LengthFacts, LengthTable, PairSums
from simulator.workload import Floats, Ints


def arrival_facts(arrival_s: Floats) -> ArrivalFacts:
    """The facts about sorted arrivals, in seconds."""
    sums = ArrivalSums()
    sums.add(arrival_s)
    return sums.facts()


def length_facts(lengths: Ints) -> LengthFacts:
    """The facts about token counts of 1 and more."""
    table = LengthTable()
    table.add(lengths)
    return table.facts()


def correlations(a: Ints, b: Ints) -> tuple[float | None, float | None]:
    """Pearson's and Spearman's; None for fewer than two values, or where all are equal."""
    tables = LengthTable(), LengthTable()
    for table, lengths in zip(tables, (a, b), strict=True):
        table.add(lengths)
    pairs = PairSums(*tables)
    pairs.add(a, b)
    return pairs.facts()
