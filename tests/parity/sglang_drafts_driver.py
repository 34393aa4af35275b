"""Gives the harness's SGLang scheduler speculative decoding (v2); runs beside sglang_driver.py, in its environment.

Real are all of the scheduler's parts that see drafts: `get_alloc_reserve_per_decode`, `eagle_prepare_for_decode` and
its allocation, the checks of memory, retraction, `mix_with_running`, and `SchedulerBatchResultProcessor`. Drafter and
model are not: a case says `accepted_drafts` of each request, verify step by verify step, and again from the first.
A case's keys: `speculative_algorithm`, `speculative_num_steps`, `speculative_eagle_topk`,
`speculative_num_draft_tokens`, as the server's flags are called.
"""

import importlib
from types import SimpleNamespace
from typing import Any

SETTINGS = {
    "speculative_algorithm": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
}
BEYOND = 8  # a token behind the end of an answer
ROOM = 4096  # more tokens than any request of a case has memory ahead


class Run:
    """The answers of the case under way, and the tokens that each batch in flight will give."""

    def __init__(self) -> None:
        self.answers: dict[str, list[int]] = {}
        self.accepted: dict[str, list[int]] = {}
        self.verified: dict[str, int] = {}
        self.given: dict[int, tuple[dict[str, int], dict[str, int]]] = {}  # tokens and their KV, by the result's id
        self.scheduler: Any = None
        self.batch: Any = None

    def in_flight(self, rid: str, what: int) -> int:
        """Tokens of a request (0), or tokens of KV (1), that results to come will give it."""
        return sum([self.given[id(result)][what].get(rid, 0) for _, result in self.scheduler.result_queue])


def let_drafts_be_verified(harness: Any) -> None:
    """Make the harness's schedulers with SGLang's speculative decoding where a case asks for it."""
    allocation: Any = importlib.import_module("sglang.srt.mem_cache.allocation")
    torch: Any = importlib.import_module("torch")
    run = Run()
    plain, plain_make, plain_record = harness.OnCpu, harness.make, harness._record
    plain_complete, plain_result, plain_pool = harness.complete, harness.GenerationBatchResult, harness.ReqToTokenPool

    def assign(rows: Any, table: Any, starts: Any, ends: Any, locations: Any, count: int) -> None:
        """What the kernel does: new locations into the rows of their requests."""
        at = 0
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            table[row, start:end] = locations[at : at + end - start].to(table.dtype)
            at += end - start

    allocation.assign_req_to_token_pool_func = assign

    class Drafting(plain):  # type: ignore[misc, valid-type] # a class that only the other interpreter has
        def __init__(self, c: dict[str, Any]) -> None:
            super().__init__(c)
            run.scheduler = self
            run.verified, run.given = {}, {}
            self.spec_algorithm = harness.SpeculativeAlgorithm.from_string(c["speculative_algorithm"])
            self.num_verified = c["speculative_num_draft_tokens"]
            self.most_accepted = min(c["speculative_num_steps"] or 0, (self.num_verified or 1) - 1)
            self.future_map = harness.Nothing()
            object.__setattr__(self.batch_result_processor, "model_worker", harness.Nothing())

        def get_next_batch_to_run(self, **given: Any) -> Any:
            plan = super().get_next_batch_to_run(**given)
            run.batch = plan.batch_to_run
            return plan

    def record(s: Any, batch: Any, *others: Any) -> dict[str, Any]:
        """A verify step computes all drafts of a request; the KV of running results is there when it does."""
        told: dict[str, Any] = plain_record(s, batch, *others)
        if s.spec_algorithm.is_none():
            return told
        prompts = 0
        if batch.forward_mode.is_decode():
            told["scheduled"] = {r.rid: s.num_verified for r in batch.reqs}
        else:
            decodes = batch.decoding_reqs or []
            prompts = len(batch.reqs) - len(decodes)
        lengths = [int(length) for length in batch.seq_lens_cpu[:prompts]]
        for r in batch.reqs[prompts:]:
            lengths.append(r.kv.kv_committed_len + run.in_flight(r.rid, 1) + told["scheduled"][r.rid])
        batch.seq_lens_cpu = torch.tensor(lengths, dtype=torch.int64)
        return told

    def run_of(r: Any, count: int) -> list[int]:
        """The next tokens of a request's answer."""
        answer, known = run.answers[r.rid], len(r.output_ids) + run.in_flight(r.rid, 0)
        return [answer[k] if k < len(answer) else BEYOND for k in range(known, known + count)]

    def result(next_token_ids: Any) -> Any:
        s, batch = run.scheduler, run.batch
        if s.spec_algorithm.is_none():
            return plain_result(next_token_ids=next_token_ids)
        tokens: dict[str, int] = {}
        flat: list[int] = []
        if batch.forward_mode.is_decode():
            for r in batch.reqs:
                step, law = run.verified.get(r.rid, 0), run.accepted[r.rid]
                run.verified[r.rid] = step + 1
                tokens[r.rid] = 1 + min(law[step % len(law)], s.most_accepted)
                flat += run_of(r, tokens[r.rid]) + [0] * (s.num_verified - tokens[r.rid])
            made = plain_result(
                next_token_ids=torch.tensor(flat, dtype=torch.int64),
                accept_lens=torch.tensor(list(tokens.values()), dtype=torch.int64),
                speculative_num_draft_tokens=s.num_verified,
            )
            run.given[id(made)] = tokens, tokens
            return made
        decodes = batch.decoding_reqs or []
        for r in batch.reqs:
            is_cut = r not in decodes and r.extend_end < len(r.full_untruncated_fill_ids)
            tokens[r.rid] = 0 if is_cut else 1
            flat += [0] if is_cut else run_of(r, 1)
        made = plain_result(next_token_ids=torch.tensor(flat, dtype=torch.int64))
        run.given[id(made)] = tokens, {r.rid: 1 for r in decodes}
        return made

    def make(case: dict[str, Any], timed: bool) -> Any:
        made = plain_make(case, timed)
        run.answers = {request.rid: answer for _, request, answer in made}
        run.accepted = {str(r["id"]): r.get("accepted_drafts") or [0] for r in case["requests"]}
        return made

    def complete(case: Any) -> dict[str, Any]:
        c: dict[str, Any] = plain_complete(case)
        context, settings = harness.get_context, {key: c[key] for key in SETTINGS}
        harness.get_context = lambda: SimpleNamespace(
            override_server_args=lambda **others: context().override_server_args(**others, **settings)
        )
        return c

    harness.DEFAULTS.update(SETTINGS)
    harness.OnCpu, harness._record, harness.make, harness.complete = Drafting, record, make, complete
    harness.GenerationBatchResult = result
    harness.ReqToTokenPool = lambda count, width, *others: plain_pool(count, width + ROOM, *others)
