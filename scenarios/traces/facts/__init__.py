"""Figures of a trace, summed up while its rows go by in the order of their arrival.

arrivals    load over time
lengths     token counts and their tails, and how input and output go together
prefix      tokens that a prefix cache could reuse

Each is an accumulator: `add` takes the next rows, `facts` says what they amount to. None holds the rows.
"""

from __future__ import annotations

from scenarios.traces.facts.arrivals import ArrivalFacts, ArrivalSums, arrival_facts
from scenarios.traces.facts.lengths import PERCENTS, LengthFacts, LengthTable, PairSums, correlations, length_facts
from scenarios.traces.facts.prefix import PrefixFacts, PrefixHits

__all__ = [
    "PERCENTS",
    "ArrivalFacts",
    "ArrivalSums",
    "LengthFacts",
    "LengthTable",
    "PairSums",
    "PrefixFacts",
    "PrefixHits",
    "arrival_facts",
    "correlations",
    "length_facts",
]
