"""The page on which all policies stand side by side, docs/systems.md, written from the policies themselves."""

from collections.abc import Iterator

from docs.writers.tables import texts
from simulator.parameters import MISSING
from simulator.policies import built_in_policies, policy_class, policy_parameters, system_of

_QUESTIONS = {
    "batch": "the batch may change",
    "prompts": "prompts are computed",
    "grant": "memory granted to enter",
    "order": "order",
    "victim": "preempted when memory runs out",
    "preemption": "how",
    "padding": "padding",
}

_HEAD = """# Batching policies side by side

This page is written from the code (`make pages PAGES=systems`). Each policy is one file or folder in
`simulator/policies/`, whose docstring has its rules with their sources.
"""

_CHECKED = """## Checked against the systems themselves

The system's own scheduler got the same requests and step times, and its decisions were compared with the policy's, step
by step. Where the scheduler cannot run apart from its server, a reference written from its sources takes its place, as
the table says. Policies that are not listed were written from publications and sources.
"""

_CHANGED = """## What that changes

Before these checks the policies were written from papers and sources. The table has the same scenarios under both,
with the same step costs and a host of 0.3 ms (`vllm`, `orca` and `tensorrt_llm` give the same figures to the last
digit):

| scenario | policy | from publications | as the system decides |
| --- | --- | --- | --- |
| `claim-15-four-systems` | `sglang` | 2,368 tok/s, p99 ITL 397 ms | 2,366 tok/s, p99 ITL 512 ms |
| `quickstart` | `sglang` | mean TTFT 437 ms | mean TTFT 444 ms |
| | `tgi` | mean TTFT 1,796 ms | mean TTFT 1,592 ms |
| `memory-pressure` | `fastgen` | 1,719 tok/s, 26,026 preemptions | 4,479 tok/s, 584 preemptions |
| | `vllm_v0` | 4,790 tok/s, 748 preemptions | 4,781 tok/s, 772 preemptions |
| | `sarathi` | mean TTFT 420 ms, 484 preemptions | mean TTFT 433 ms, 500 preemptions |
| | `sglang` | 3,570 tok/s | 3,564 tok/s |
| `long-tail` | `sglang` | mean TTFT 9 ms | mean TTFT 14 ms |

The ratio 1 : 5 : 8 : 6 of claim 15 did not change. SGLang differs by its overlap schedule, the server's default: an
answer starts one step later. Throughput changes by less than 1 %, except for FastGen when memory is short: when no
request could continue, the policy preempted all of them, and the real loop flushes one.
"""

_SGLANG = """## Speculative decoding of SGLang

`engine.speculative_config` with `policy: sglang` follows SGLang 0.5.23 (v2, the only one it has):

- A decode step may write A = max(steps x top-k, draft tokens) tokens of a request; with pages of more than one token
  and a tree of drafts, whole pages for each branch (`mem_cache/allocation_sizing.py:27`).
- Before each decode step a request gets memory up to its committed tokens + 2A, rounded up to a page, and never gives
  any back before it leaves (`page_aligned_decode_alloc_lens`, `:73`). The factor of 2 is there without overlap too.
- Retraction asks whether that much is free (`managers/schedule_batch.py:3421`). Admission reserves nothing for drafts:
  `PrefillAdder` and the new token ratio are those of plain decoding.
- The committed tokens grow with the results by the accepted drafts and one token more, so with overlap they lag by a
  step (`managers/scheduler_components/batch_result_processor.py:831`). The result of a retracted request is dropped.
- With overlap only a request whose next token is its last by `max_tokens` is left out of the next step
  (`managers/scheduler.py:4438`). One that ends within an accepted run, or by itself, is computed once more in vain.
- A step with prompts verifies no drafts: beside them (`enable_mixed_chunk`; not with NGRAM and STANDALONE) a request
  computes one token, and takes the memory of a verify step nevertheless.
- An answer that passes `max_tokens` within an accepted run is cut there; a stop token within it comes first
  (`schedule_batch.py:2007`). What was committed up to the end enters the radix tree.

`num_speculative_tokens` is `--speculative-num-steps`; a tree has `eagle_topk` and `num_draft_tokens`. Which flags
SGLang chooses by itself stands in `scenarios/servers/sglang.py`.

What cannot be driven without a GPU is not held against SGLang: which drafts are accepted (they are data, as for vLLM),
the time of drafter and verify step (a pass over the tokens of the step, and one for each further step of the tree), and
the memory of the drafter. NGRAM's trees are modelled as chains: how long its longest branch is depends on the text.
DFLASH, DSPARK, UNO, adaptive numbers of steps, and grammars are not modelled, nor are drafts of ranks that share their
steps, beside prefill and decode apart, or together with a real scheduler (`policy: real`, `batchlab parity`).
Differences on purpose:

- A request that would not fit with its drafts, alone in an empty memory, is rejected as it arrives. SGLang serves it
  until it no longer fits, and then aborts it.
- An abort is noticed when the engine looks next, and its tokens in flight are dropped. SGLang lets the request leave
  with its next result.
- Several answers to one prompt (`n` above 1) are as many requests, each with its own drafts, as in SGLang. It computes
  their prompt once before them, for its cache (`managers/tokenizer_manager.py:2130`), which is not modelled. Nor are
  beams, which it refuses with drafts.

A PrefillDelayer whose attention is divided among data-parallel ranks also waits for the other ranks, and needs their
process group; only the server with one rank is modelled.
"""


def page() -> str:
    """The whole page, as Markdown."""
    parts = [_HEAD, *_table(), "", _CHECKED, *_checks(), "", _CHANGED, _SGLANG, "## Parameters", "", *_parameters()]
    return "\n".join(parts) + "\n"


def _table() -> Iterator[str]:
    known = ((policy, system) for policy in built_in_policies() if (system := system_of(policy)) is not None)
    rows = ([f"`{policy}`", system.name, *(getattr(system, key) for key in _QUESTIONS)] for policy, system in known)
    return texts(["policy", "system", *_QUESTIONS.values()], rows)


def _checks() -> Iterator[str]:
    known = ((policy, system.checked) for policy in built_in_policies() if (system := system_of(policy)) is not None)
    rows = ((f"`{policy}`", of.against, of.on, of.uncovered) for policy, of in known if of is not None)
    return texts(("policy", "against", "on", "not covered"), rows)


def _parameters() -> Iterator[str]:
    for policy in built_in_policies():
        given = ", ".join(
            f"`{name}: {_written(known.default)}`" for name, known in policy_parameters(policy_class(policy)).items()
        )
        yield f"- `{policy}`: {given}"


def _written(default: object) -> str:
    if default is None or default is MISSING:
        return "null"
    return str(default).lower() if isinstance(default, bool) else str(default)
