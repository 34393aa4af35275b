"""Asynchronous scheduling for the naive engine, told as vLLM tells it: placeholders, and a queue of two steps."""

from typing import Any

from simulator.request import Request
from tests.laws.naive_engine import NaiveReplica
from tests.laws.naive_request import NaiveRequest


class NaiveAsyncReplica(NaiveReplica):
    """Plans a step while the one before it runs. Results come when a step has ended and the next has been planned."""

    def serve(self, arrivals: list[Request]) -> None:
        coming = list(arrivals)
        flying: list[dict[str, Any]] = []
        busy_until_s = 0.0
        while True:
            while coming and coming[0].arrival_s <= self.now_s:
                self.arrive(coming.pop(0))
            step = None
            if self.batch or self.queue.waiting:
                step = self.plan_ahead(busy_until_s)
            else:
                self.note = None  # what a policy remembers of a server that is idle
            if step is not None:
                busy_until_s = step["t_end_s"]
                flying.append(step)
                if len(flying) < 2:
                    continue
            if flying:
                step = flying.pop(0)
                self.now_s = max(self.now_s, step["t_end_s"])
                self.deliver(step)
            elif coming:
                self.now_s = coming[0].arrival_s
            else:
                return

    def plan_ahead(self, busy_until_s: float) -> dict[str, Any] | None:
        """The next step: what it computes counts as computed, and what it samples as a placeholder."""
        self.queue.look(self.now_s)
        plan = self.policy.plan(self)
        self.note = plan.note
        step = self.apply(plan)
        if step is None:
            return None
        start_s = max(self.now_s, busy_until_s)
        end_s = start_s + self.seconds(step)
        decoding: list[NaiveRequest] = step.pop("decoding")
        chunks: list[tuple[NaiveRequest, int, int]] = step.pop("chunks")
        del step["held"]
        wasted = [r for r in decoding if r.output_tokens_so_far == r.true_output_tokens]
        sampling = list(decoding)
        for request in decoding:
            request.num_computed_tokens += 1
        for request, n, _ in chunks:
            request.num_computed_tokens += n
            if request.num_tokens_to_compute == 0:
                sampling.append(request)
                request.state = "decoding"
        for request in sampling:
            request.placeholders += 1
            if request.output_tokens_so_far == request.max_tokens:
                request.state = "leaving"
        decoders = [r.row for r in decoding if r not in wasted]
        self.steps.append(
            step
            | {
                "replica": self.index,
                "step": len(self.steps),
                "t_schedule_s": self.now_s,
                "t_start_s": start_s,
                "t_end_s": end_s,
                "decoders": decoders,
                "prefilling": sum(n > 0 for _, n, _ in chunks),
                "only_decodes": not chunks,
                "num_held": len(wasted),
                "padded_tokens": len(wasted),
                "sampling": sorted(sampling, key=self.place),
                "num_free_blocks": self.num_free_blocks,
            }
        )
        return self.steps[-1]

    def place(self, request: NaiveRequest) -> int:
        return self.batch.index(request)

    def deliver(self, step: dict[str, Any]) -> None:
        """The results of a step that has ended, those of its victims too."""
        end_s = step["t_end_s"]
        step["finished"] = []
        for request in step.pop("sampling"):
            if request.state == "finished":
                continue  # a token too many
            request.token_s.append(end_s)
            request.placeholders = max(0, request.placeholders - 1)
            if len(request.token_s) < request.true_output_tokens:
                continue
            if request.state == "waiting":
                self.queue.remove(request)
                request.waits.append((request.left_s, end_s, False))
                request.recomputed_tokens -= request.lost_tokens
            else:
                self.batch.remove(request)
            request.state = "finished"
            request.released_s = end_s
            step["finished"].append(request.request_id)
        step["num_free_blocks_end"] = self.num_free_blocks

    def leave(self, request: NaiveRequest, *, swap: bool) -> int:
        request.lost_tokens = request.num_computed_tokens
        request.placeholders = 0
        return super().leave(request, swap=swap)


class NaiveOverlapReplica(NaiveAsyncReplica):
    """As SGLang tells it: no step of nothing, and the token that a retracted request was being given is lost."""

    def deliver(self, step: dict[str, Any]) -> None:
        step["sampling"] = [request for request in step["sampling"] if request.state != "waiting"]
        super().deliver(step)
