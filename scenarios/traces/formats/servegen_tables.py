"""ServeGen's tables of clients: a folder of chunk-N-trace.csv without headers, parameters of a generator."""

from __future__ import annotations

import re

from scenarios.traces.format import TraceFormat

FORMAT = TraceFormat(
    name="servegen-tables",
    title="ServeGen client tables (a generator's parameters, no trace)",
    begins=re.compile(r"\s*[\d.]+,[\d.]+,[\d.]+,(Gamma|Weibull)?,[\d.]+,[\d.]+\s*$", re.MULTILINE),
    in_folder=re.compile(r"chunk-.*-trace\.csv"),
)
