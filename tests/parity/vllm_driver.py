"""Runs in an environment that has vLLM: cases on stdin, a line each; the scheduler's records on stdout, a line each.

usage: python vllm_driver.py FOLDER_OF_THE_ORACLE

A request may have an `abort_time`, in cases with a cost: the client's abort is then handed to the scheduler as vLLM's
engine core does, before the results of the next step to end. `aborted` of a record names those that were aborted
between this decision and the next.

The harness ends every answer at its `max_tokens`. Here a request may have larger `max_tokens` than `output_len`: its
last token is then a stop token, as when a model ends its answer by itself.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RequestStatus: Any = None  # vLLM's, once the oracle has imported it

STOP = 1 << 50  # stop tokens count from here, so that no two requests have the same


class Requests(dict[str, Any]):
    """The scheduler's requests. Of one that has ended the harness asks what comes next, for a token thrown away."""

    def __missing__(self, request_id: str) -> SimpleNamespace:
        return SimpleNamespace(_output_token_ids=())


def let_answers_end(oracle: Any) -> None:
    """Teach the harness requests that stop before their `max_tokens`."""
    build, make = oracle.build_scheduler, oracle.make_requests

    def build_scheduler(config: dict[str, Any]) -> Any:
        scheduler = build(config)
        scheduler.requests = Requests(scheduler.requests)
        return scheduler

    def make_requests(case: dict[str, Any], config: dict[str, Any], timed: bool) -> list[Any]:
        made = make(case, config, timed)
        for _, place, request, outputs in made:
            most = case["requests"][place].get("max_tokens", len(outputs))
            if most > len(outputs):
                request.max_tokens = request.sampling_params.max_tokens = most
                request.sampling_params.stop_token_ids = [STOP + place]
                outputs[-1] = STOP + place
        return list(made)

    oracle.build_scheduler, oracle.make_requests = build_scheduler, make_requests


class Aborts:
    """Hands the aborts of a case to its scheduler, at the times of the harness."""

    def __init__(self, case: dict[str, Any], requests: list[Any]) -> None:
        abort_s = [request.get("abort_time") for request in case["requests"]]
        self._coming = sorted(
            (abort_s[place], rank, request.request_id)
            for rank, (_, place, request, _) in enumerate(requests)
            if abort_s[place] is not None
        )
        self._planned = -1  # the last decision
        self._scheduler: Any = None
        self.told: dict[int, list[str]] = {}  # by decision
        self.ever: set[str] = set()

    def watch(self, scheduler: Any) -> None:
        """Let the harness's calls of the scheduler tell the time."""
        self._scheduler = scheduler
        add, schedule, update = scheduler.add_request, scheduler.schedule, scheduler.update_from_output

        def add_request(request: Any) -> None:
            add(request)
            self._abort(sys._getframe(1).f_locals["now"])

        def schedule_next() -> Any:
            self._planned += 1
            return schedule()

        def update_from_output(*results: Any) -> Any:
            self._abort(sys._getframe(1).f_locals["cpu_t"])
            return update(*results)

        scheduler.add_request, scheduler.schedule = add_request, schedule_next
        scheduler.update_from_output = update_from_output

    def _abort(self, now_s: float) -> None:
        """Those that are due, and whose requests have arrived."""
        for entry in list(self._coming):
            at_s, _, request_id = entry
            if at_s <= now_s and self._scheduler.has_request(request_id):
                self._coming.remove(entry)
                gone = self._scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
                assert [request.request_id for request in gone] == [request_id]
                self.told.setdefault(self._planned, []).append(request_id)
                self.ever.add(request_id)


def let_weights_order(oracle: Any, case: dict[str, Any]) -> None:
    """Let the harness's scheduler be the class of the file that batchlab writes for `weighted`.

    Its clock is the time of the harness as it schedules.
    """
    own = importlib.import_module("vllm_scheduler")
    own.WEIGHTS.update(case["weights"])
    now = [0.0]

    def timed(base: Any) -> Any:
        def schedule(self: Any) -> Any:
            now[0] = float(sys._getframe(1).f_locals["now"])
            return base.schedule(self)

        return type(base.__name__, (base,), {"clock": staticmethod(lambda: now[0]), "schedule": schedule})

    oracle.Scheduler, oracle.AsyncScheduler = timed(own.SyncWeightedScheduler), timed(own.WeightedScheduler)
    cls = oracle.AsyncScheduler if case["config"].get("async_scheduling") else oracle.Scheduler
    oracle.SchedulerConfig = partial(importlib.import_module("vllm.config").SchedulerConfig, scheduler_cls=cls)


def answer_to(oracle: Any, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The harness's records; who has finished is named once, though a step more may have been computed for it."""
    aborts: list[Aborts] = []
    make, build = oracle.make_requests, oracle.build_scheduler

    def make_requests(case: dict[str, Any], *more: Any) -> list[Any]:
        made = list(make(case, *more))
        aborts.append(Aborts(case, made))
        aborts[0].watch(schedulers[0])
        return made

    def build_scheduler(config: dict[str, Any]) -> Any:
        schedulers.append(build(config))
        return schedulers[0]

    schedulers: list[Any] = []
    aborting = any(request.get("abort_time") is not None for request in case["requests"])
    if aborting:
        oracle.make_requests, oracle.build_scheduler = make_requests, build_scheduler
    try:
        records = list(oracle.run(case))
    finally:
        oracle.make_requests, oracle.build_scheduler = make, build
    finished: set[str] = set(aborts[0].ever) if aborting else set()
    for number, record in enumerate(records):
        record["finished"] = [request_id for request_id in record["finished"] if request_id not in finished]
        finished.update(record["finished"])
        if aborting and number in aborts[0].told:
            record["aborted"] = aborts[0].told[number]
        yield record


def main() -> None:
    sys.path[0] = sys.argv[1]  # instead of this folder, whose modules are not meant
    sys.path.append(str(Path(__file__).parents[2] / "scenarios" / "templates"))
    oracle = importlib.import_module("vllm_oracle")
    globals()["RequestStatus"] = importlib.import_module("vllm.v1.request").RequestStatus
    let_answers_end(oracle)
    answer: list[dict[str, Any]] | dict[str, str]
    for line in sys.stdin:
        try:
            case = json.loads(line)
            if "weights" in case:
                let_weights_order(oracle, case)
            answer = list(answer_to(oracle, case))
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
