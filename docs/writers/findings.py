"""The page of findings, docs/diagnosis.md, written from the rules."""

from __future__ import annotations

from scenarios.diagnosis.diagnose import EXPLAINS, WASTES
from scenarios.diagnosis.late import TOLERATED
from scenarios.diagnosis.rules import RULES
from scenarios.diagnosis.what_if import CHEAPER, GAIN, MOST
from simulator.percent import percent

_HEAD = f"""\
# What is wrong with a run

This page is written from the rules (`make pages PAGES=diagnosis`); a test keeps it true. A rule
is a file of `scenarios/diagnosis/rules`.

`batchlab run` and `compare` end with the worst finding in a line or two, and `report.html` has all of them.
`batchlab explain RUN_DIR` simulates the run again, tries each finding's remedies on the same requests, and says what
each gained and what it cost. A remedy that gains nothing is told as that.

## How causes are weighed

A request is late if it misses a limit of the SLO, or was lost. A target on a percentile counts as a limit of each
request; of limits and targets that are missed together, the one missed by the largest factor counts. Without an SLO,
late is who waited longer than requests are served on average. The run is broken if it misses its targets; where an SLO
has limits alone, if more than {percent(TOLERATED)} of the requests, or of a class with limits of its own, are late.
Where a run is not broken, no finding about late requests is told, however many there are.

Each rule says for every late request how many of its seconds the cause accounts for. The rules are asked in the order
below, narrow causes before wide ones and settings before hardware, and what a rule explains is not explained again by
those after it. A finding *explains* the mean share of the late requests' excess over their limits that it took; its
*severity*, by which findings are ordered, is that share of all requests. A cause that explains less than
{percent(EXPLAINS)} of the late requests is not told. What no rule explains is told as unexplained.

In a run that is not broken, causes that cost work are told from {percent(WASTES)} of it on, by the share of the GPU
time or of the computed tokens.

An overload is shared between its causes as in a fluid queue: requests that come at p times the rate of service let the
queue grow by p - 1, and with g times the service by p - g. A cause without which g times as much would be served so
accounts for (g - 1) / (p - 1) of the waiting, and for all of it from g = p on.

A what-if run has the same requests, seeds and times. It helps if it saves {percent(GAIN)} of the late requests; where
nobody is late, if it saves {percent(CHEAPER)} of the cost, of the busy time or of the computed tokens, and breaks
nothing. At most {MOST} remedies of a finding are tried, until one brings the run within its SLO.

## The findings

| finding | what it means | how it is told | what helps |
| --- | --- | --- | --- |
"""

_TAIL = """
## Limits

- A run is one seed. A cause that is rare may be absent from it, and a remedy's gain has the noise of one run, though
  both runs have the same requests.
- A remedy is a change of the scenario's keys. Some cannot be tried: a policy for single groups of a fleet, less load.
- What-if runs of hardware rest on the step costs of that hardware: a scenario with `cost: {kind: linear}` keeps its
  steps on any GPU, and says of more GPUs only what their memory does.
- Routers are not held against each other where prefill and decode are apart.
"""


def page() -> str:
    """The whole page."""
    lines = [
        f"| **{rule.title}** (`{rule.name}`) | {rule.means} | {rule.told_by} | {rule.helps} |" for rule in RULES
    ]  # fmt: skip
    return _HEAD + "\n".join(lines) + "\n" + _TAIL
