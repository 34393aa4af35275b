"""The meaning of every file of a run folder and of every column of its tables, for docs/run-folder.md.

A test compares the columns with those that are written. A column has its unit and its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.runs.storage import run_folder as names

Columns = Mapping[str, tuple[str, str]]

_S, _MS, _TOKENS, _BLOCKS = "s", "ms", "tokens", "blocks"

REQUESTS: Columns = {
    "request_id": ("", "its name in the trace, else its row"),
    "class": ("", "its class"),
    "status": ("", "`finished`, `rejected`, `unfinished` (at the end of the run) or `aborted` (by its client)"),
    "arrival_s": (_S, "when it arrived"),
    "scheduled_s": (_S, "first time scheduled"),
    "first_token_s": (_S, "when the client had its first token"),
    "last_token_s": (_S, "when the client had its last token"),
    "input_tokens": (_TOKENS, "of its prompt"),
    "output_tokens": (_TOKENS, "generated"),
    "ttft_ms": (_MS, "first token - arrival"),
    "tpot_ms": (_MS, "(last token - first token) / (output tokens - 1); empty for one token"),
    "e2el_ms": (_MS, "last token - arrival"),
    "queue_time_ms": (_MS, "first time scheduled - arrival"),
    "preemptions": ("", "how often it lost its place"),
    "recomputed_tokens": (_TOKENS, "KV thrown away by preemption, which had to be computed again"),
    "requeued_s": (_S, "spent waiting again after preemptions"),
    "swapped_out_blocks": (_BLOCKS, "moved to the host"),
    "swapped_in_blocks": (_BLOCKS, "moved back"),
    "cached_tokens": (_TOKENS, "of the prompt, found in the prefix cache, all admissions together"),
    "aborted_tokens": (_TOKENS, "computed for it in vain, where it was aborted"),
    "max_tokens": (_TOKENS, "the most that it may generate"),
    "priority": ("", "lower is more important, as in vLLM"),
    "replica": ("", "the number of the replica that served it; -1 for none"),
    "released_s": (_S, "when its slot, KV or place in the queue came free"),
    "reject_reason": ("", "why it was rejected"),
    "session_id": ("", "its conversation; the column is there where there are any"),
    "turn": ("", "its place in the conversation, from 1"),
    "attempt": ("", "which attempt of its client, from 1; the three columns are there where clients answer back"),
    "retry_of": ("", "the `request_id` of the first attempt; empty for that itself"),
    "left_s": (_S, "when the client lost its patience; empty where it stayed"),
}

STEPS: Columns = {
    "replica": ("", "the number of the replica"),
    "first_step": ("", "index of the row's first step among all steps"),
    "repeat": ("", "steps that the row stands for: equal decode steps, one after the other"),
    "start_s": (_S, "when the first of them started"),
    "end_s": (_S, "when the last of them ended"),
    "running": ("requests", "that hold a slot, finished ones included"),
    "held": ("requests", "of these, finished: kept by their batch, or given a token too many"),
    "waiting": ("requests", "in the queue after the decision"),
    "swapped": ("requests", "of these, with their KV on the host"),
    "decoding": ("requests", "that compute one decode token"),
    "prefilling": ("requests", "with a prompt chunk"),
    "tokens": (_TOKENS, "computed in one step, padding included"),
    "padded_tokens": (_TOKENS, "of these, padding and tokens of held requests"),
    "prefill_tokens": (_TOKENS, "of these, prompt tokens"),
    "context_tokens": (_TOKENS, "in the KV cache after the step, over the requests of the step"),
    "preempted": ("requests", "that lost their place for this step"),
    "swapped_out_blocks": (_BLOCKS, "moved to the host"),
    "swapped_in_blocks": (_BLOCKS, "moved back"),
    "used_blocks": (_BLOCKS, "in use during the row's first step"),
}

REPLICAS: Columns = {
    "replica": ("", "its number"),
    "group": ("", "its group of the fleet"),
    "replica_seconds": (_S, "that it was there"),
    "requests": ("requests", "given to it, of those measured"),
    "completed": ("requests", "with all their tokens"),
    "rejected": ("requests", "refused by it"),
    "input_tokens": (_TOKENS, "of the completed requests"),
    "output_tokens": (_TOKENS, "of the completed requests"),
    "num_steps": ("", "steps that it executed"),
    "busy_fraction": ("share", "time with a step in flight / duration"),
    "kv_utilization_mean": ("share", "used / usable KV blocks, mean over time"),
    "kv_utilization_peak": ("share", "the same, at the fullest moment"),
    "preemptions": ("", "of requests that it served"),
    "prefix_cache_hit_rate": ("share", "prompt tokens found in the prefix cache / asked for"),
}

LIVES: Columns = {
    "replica": ("", "its number"),
    "start_s": (_S, "its GPUs are in use from here"),
    "ready_s": (_S, "it takes requests from here"),
    "drain_s": (_S, "to here"),
    "end_s": (_S, "it is empty, and its GPUs are free; empty: at the end of the run"),
}

TRANSFERS: Columns = {
    "row": ("", "of requests.csv.gz, from 0"),
    "from_replica": ("", "that computed the prompt"),
    "to_replica": ("", "that decodes"),
    "blocks": (_BLOCKS, "of the replica that computed the prompt"),
    "bytes": ("bytes", "moved"),
    "ready_s": (_S, "its first token is there"),
    "start_s": (_S, "the link begins with it"),
    "end_s": (_S, "all is there"),
}

PREFIXES: Columns = {
    "parent": ("", "the line, from 0, of the stretch before it; -1 for the first, which stands for all requests"),
    "from_tokens": (_TOKENS, "of the prompt, before it"),
    "to_tokens": (_TOKENS, "of the prompt, up to its end"),
    "requests": ("", "whose prompts begin with all of it"),
}

DECISIONS: Columns = {
    "replica": ("", "the number of the replica"),
    "step": ("", "counts the replica's steps from 0"),
    "t_schedule_s": (_S, "when it was planned; with asynchronous scheduling only"),
    "t_start_s": (_S, "when it started"),
    "t_end_s": (_S, "when it ended"),
    "scheduled": ("{id: tokens}", "the tokens computed for each request, padding not counted"),
    "admitted": ("{id: tokens}", "requests that came in, with the tokens found in the prefix cache"),
    "preempted": ("[ids]", "that lost their place, in order"),
    "swapped_out": ("[ids]", "of these, whose KV moved to the host"),
    "swapped_in": ("[ids]", "whose KV came back"),
    "running": ("[ids]", "that hold a slot"),
    "preempted_before": ("[ids]", "victims of plans that computed nothing and so were no step; where there are any"),
    "finished": ("[ids]", "that have all their tokens after it"),
    "waiting": ("[ids]", "in the queue, in order"),
    "num_free_blocks": (_BLOCKS, "free after the decision"),
    "num_free_blocks_end": (_BLOCKS, "free after the step"),
    "aborted": ("[ids]", "that their clients gave up meanwhile; where there are any"),
}

ARRAYS: Columns = {
    "about": ("", "JSON as bytes: the format's number, blocks, slots, classes, groups, notes"),
    "step_end_s": (_S, "the end of every single step, in the order of the rows of steps.csv.gz"),
    "step_used_blocks": (_BLOCKS, "in use during every single step"),
    "gap_s": (_S, "gaps between neighbouring tokens of a request that no row holds"),
    "gap_count": ("requests", "that had the gap; -1 takes one back, of a token that an abort dropped"),
    "gap_end_s": (_S, "when it ended"),
    "requeue_row": ("", "row of a request that was preempted: an entry a preemption"),
    "requeue_from_s": (_S, "when it lost its place"),
    "requeue_to_s": (_S, "when it had one again; NaN: never"),
    "requeue_swapped": ("", "1: its KV was on the host, 0: thrown away"),
    "front_end_s": (_S, "what lies between the engine and each request's client; where that is modelled"),
}

TABLES: Mapping[str, tuple[str, Columns]] = {
    names.REQUESTS: (
        "A row a request, in the order of the workload. It is a trace too: `trace inspect` reads it.",
        REQUESTS,
    ),
    names.STEPS: ("A row a step, or a run of equal decode steps. Counts are those of the row's first step.", STEPS),
    names.REPLICAS: ("A row a replica, where there are several.", REPLICAS),
    names.LIVES: ("A row a life of a replica, where an autoscaler changes their number.", LIVES),
    names.TRANSFERS: ("A row a request whose KV moved, where prefill and decode are apart.", TRANSFERS),
    names.PREFIXES: (
        "A row a stretch of tokens that two prompts or more begin with, where a prefix cache found any: a tree.",
        PREFIXES,
    ),
    names.DECISIONS: ("An object a step, with `--log-decisions`. Ids are `request_id`s.", DECISIONS),
    names.REST: (
        "What pictures need beyond the tables: numpy arrays, read by `numpy.load`. Not meant for other programs.",
        ARRAYS,
    ),
}
"""By file: what it holds, and its columns, keys or arrays."""

OTHERS: Mapping[str, str] = {
    names.SCENARIO: "the scenario with every default written out; `batchlab run` on it gives the same bytes",
    names.SUMMARY: "the figures of the run, below",
    names.REPORT: "one page with verdict, tables and pictures (`--report`, `report`, `compare`); nothing is fetched",
    f"{names.PLOTS}/": "the pictures of the report, each as PNG and SVG",
    names.ARRIVALS: "the requests that came to `serve`, as a native trace",
    names.EXPLANATION: "findings and tried remedies, of `explain --out`",
    names.VALIDATION: "errors against a server's log, of `validate`",
    names.MEASURED: "the server's requests beside the simulated ones, of `validate`",
}
"""By file or folder of a run: what else may be there."""

ELSEWHERE: Mapping[str, str] = {
    names.COMPARISON: "`compare`: means over seeds with intervals, by label; the runs are in `LABEL/seed-N/`",
    names.STUDY: "`sweep`: the study, resolved",
    names.TABLE: "`sweep`: a row a point and seed: the varied keys, `seed`, the keys of summary.json, `error`",
    names.PARQUET: "`sweep`: the same as parquet, where pyarrow is installed",
    f"{names.POINTS}/": "`sweep`: each run's outcome by its content, for resuming",
    names.PLAN: "`plan`: the answer, as `--json` prints it",
    f"{names.CANDIDATES}/": "`plan`: a scenario for each of the best candidates",
    names.LOCKSTEP: "`lockstep`: predicted against measured, in figures",
    names.LOCKSTEP_STEPS: "`lockstep`: the same, a row a step",
    names.FREE_RUNNING: "`lockstep --free-running`: both clocks run freely",
    names.MEASUREMENT: "`calibrate measure`: what was measured on which device",
    names.ROWS: "`calibrate measure`: a row a kernel or step",
}
"""By file of other verbs' folders: what it is."""
