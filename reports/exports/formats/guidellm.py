"""The run's requests as a trace that GuideLLM replays: `--data kind=trace_synthetic,path=...`.

JSON Lines of timestamp (s), input_length and output_length (tokens), in order of arrival (vllm-project/guidellm,
src/guidellm/data/deserializers/trace_synthetic.py). What clients sent, at the times that they sent it: requests without
an answer stand in it too, with the length that they were allowed.
"""

from collections.abc import Iterator
from typing import Any

from reports.exports.exported_run import Exported, ExportFormat, write_lines
from simulator.results.records import Status

FILE = "guidellm-trace.jsonl"


def _rows(run: Exported) -> Iterator[dict[str, Any]]:
    requests = run.records.requests
    for row in run.in_order_sent():
        done = requests.status[row] == Status.FINISHED
        yield {
            "timestamp": float(requests.arrival_s[row]),
            "input_length": int(requests.input_tokens[row]),
            "output_length": int((requests.output_tokens if done else requests.max_tokens)[row]),
        }


FORMAT = ExportFormat(
    title="GuideLLM's trace_synthetic: the same requests again",
    note="the requests that came, at their times: `guidellm benchmark --data kind=trace_synthetic,path=FILE`",
    files=(FILE,),
    write=lambda run, folder: write_lines(folder / FILE, _rows(run)),
)
