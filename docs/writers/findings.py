"""The page of findings, docs/diagnosis.md, written from the rules."""

from scenarios.diagnosis.diagnose import CHEAPER, EXPLAINS, GAIN, MOST, WASTES
from scenarios.diagnosis.late import TOLERATED
from scenarios.diagnosis.rules import RULES
from simulator.metrics.metric import percent

_HEAD = f"""\
# What is wrong with a run

This page is written from the rules (`make pages PAGES=diagnosis`). A rule is one file of `scenarios/diagnosis/rules`.

`batchlab run` and `compare` end with the worst finding; `report.html` has all of them. `batchlab explain RUN_DIR`
simulates the run again, tries the remedies of each finding on the same requests, and gives the gain and cost of each.

## How causes are weighed

**Late.** A request is late if it misses a limit of the SLO, or was lost. A target on a percentile counts as a limit of
each request. Of several missed limits, the one missed by the largest factor counts. Without an SLO, a request is late
if it waited longer than the mean time of service.

**Broken.** A run is broken if it misses its targets, or, without targets, if more than {percent(TOLERATED)} of the
requests are late (or of a class with its own limits). Findings about late requests are shown only for broken runs.

**Share.** For every late request, each rule says how many of its seconds the cause accounts for. The rules are asked
in the order below: narrow causes before wide ones, settings before hardware. Seconds that one rule explains are not
explained again. A finding *explains* the mean share that it took of the late requests' excess over their limits. Its
*severity* is that share of all requests; findings are ordered by it. A cause that explains less than
{percent(EXPLAINS)} of the late requests is not shown. The rest is shown as unexplained.

In a run that is not broken, causes that cost work are shown from {percent(WASTES)} of it on, by the share of the GPU
time or of the computed tokens.

**Overload.** Causes share an overload as in a fluid queue. If requests arrive at p times the rate of service, the
queue grows by p - 1, and with g times the service by p - g. A cause whose removal would give g times the service
accounts for (g - 1) / (p - 1) of the waiting, and for all of it from g = p on.

**What-if runs** have the same requests, seeds and times. A remedy helps if it saves {percent(GAIN)} of the late
requests. If no request is late, it helps if it saves {percent(CHEAPER)} of the cost, of the busy time or of the
computed tokens, and breaks nothing. At most {MOST} remedies of a finding are tried, until one brings the run within
its SLO.

## The findings

| finding | what it means | how it is recognised | what helps |
| --- | --- | --- | --- |
"""

_TAIL = """
## Limits

- A run is one seed. A rare cause may be absent from it. The gain of a remedy has the noise of one run, though both runs
  have the same requests.
- A remedy is a change of the scenario's keys. Some cannot be tried: a policy for single groups of a fleet, less load.
- What-if runs of hardware rest on the step costs of that hardware. A scenario with `cost: {kind: linear}` keeps its
  steps on any GPU, so such a run shows only what the memory of more GPUs changes.
- Routers are not compared with each other where prefill and decode are apart.
"""


def page() -> str:
    """The whole page."""
    lines = [
        f"| **{rule.title}** (`{rule.name}`) | {rule.means} | {rule.told_by} | {rule.helps} |" for rule in RULES
    ]  # fmt: skip
    return _HEAD + "\n".join(lines) + "\n" + _TAIL
