"""The trial of a law: runs of a scenario that differ in one thing, compared, with policy and KV blocks watched."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from scenarios.assembly.fleet_parts import build_router
from scenarios.assembly.replica_parts import ReplicaParts, build
from scenarios.schema.scenario import Scenario
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.plan import Policy, StepPlan, View
from simulator.policies import load_policy, policy_parameters
from simulator.policy_traits import Traits
from simulator.results.records import Records
from simulator.simulate import Run, simulate
from simulator.workload import Workload

# The experiment of a law: a scenario that can be run again, with one thing changed, and the runs compared.


@dataclass(frozen=True, slots=True)
class Breach:
    """A breach of a law: `what` happened, with its numbers, and the first step and time at which it did."""

    what: str
    step: int | None = None
    time_s: float | None = None

    @classmethod
    def at(cls, step: Mapping[str, Any], what: str) -> Breach:
        """A breach in a step of the decision log."""
        return cls(what, step["step"], step["t_start_s"])

    def __str__(self) -> str:
        at = [] if self.step is None else [f"step {self.step}"]
        at += [] if self.time_s is None else [f"at {self.time_s:g} s"]
        return f"{' '.join(at)}: {self.what}" if at else self.what


class Experiment(Protocol):
    """A workload, a policy and a replica's memory, put together."""

    @property
    def workload(self) -> Workload: ...

    @property
    def policy(self) -> Policy: ...

    def new_policy(self) -> Policy:
        """A new policy, as if its file had just been read: it remembers nothing of an earlier one."""

    def on(self, workload: Workload) -> Experiment:
        """The experiment with other requests."""

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = ...,
        make_policy: Callable[[], Policy] | None = None,
    ) -> Run:
        """Simulate it, by a new policy unless `make_policy` gives one for each replica."""


Law = Callable[[Experiment, Run], Breach | None]
"""A law: of the experiment and its run, one event a step with the decisions logged, the first breach; None if none."""


def asynchronous(experiment: Experiment) -> bool:
    """Return whether the policy plans a step while the last one runs: its results count for the plan after the next."""
    return Traits.of(experiment.policy).async_scheduling


# Runs compared: records to the last bit, decisions step by step.


def differences(a: Records, b: Records) -> list[str]:
    """List the columns in which two records differ by so much as a bit."""
    found = []
    for name in ("requests", "rows", "gaps", "requeues", "calls", "lives", "transfers", "drafts"):
        left, right = getattr(a, name), getattr(b, name)
        if left is None or right is None:
            found += [name] if left is not right else []
            continue
        for column in fields(left):
            if getattr(left, column.name).tobytes() != getattr(right, column.name).tobytes():
                found.append(f"{name}.{column.name}: {getattr(left, column.name)} {getattr(right, column.name)}")
    for name in ("step_end_s", "step_used_blocks"):
        if not np.array_equal(getattr(a, name), getattr(b, name)):
            found.append(f"{name}: {getattr(a, name)} {getattr(b, name)}")
    if a.reject_reasons != b.reject_reasons:
        found.append("reject_reasons")
    return found


def first_difference(
    one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]], told: tuple[str, str]
) -> Breach | None:
    """Find the first step at which two logs of decisions differ, and in what; `told` names the two logs."""
    for left, right in zip(one, two, strict=False):
        if left == right and list(left) == list(right):
            continue
        key = next((key for key in left if left[key] != right.get(key)), "")
        what = f"{key} is {left.get(key)}{told[0]}, {right.get(key)}{told[1]}"
        return Breach.at(left, what)
    if len(one) == len(two):
        return None
    more = max(one, two, key=len)[min(len(one), len(two))]
    return Breach.at(more, f"{len(one)} steps{told[0]}, {len(two)}{told[1]}")


# A block manager that checks its whole state after every single operation.


class LeakError(AssertionError):
    """Blocks were lost, made up, or owned on both sides."""


class CheckingBlocks(BlockManager):
    """Checks the rules of blocks after every operation, and counts the operations."""

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        super().__init__(num_blocks, num_host_blocks)
        self.operations = 0
        self._inside = False  # an operation that is made of others

    def allocate(self, row: int, num_blocks: int) -> None:
        with self._takes(num_blocks):
            super().allocate(row, num_blocks)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        with self._takes(num_blocks):
            super().grow(num_blocks, rows)

    def free(self, row: int, num_blocks: int) -> None:
        with self._takes(-num_blocks):
            super().free(row, num_blocks)

    def swap_out(self, row: int, num_blocks: int) -> None:
        with self._takes(-num_blocks, host=num_blocks):
            super().swap_out(row, num_blocks)

    def swap_in(self, row: int, num_blocks: int) -> None:
        with self._takes(num_blocks, host=-num_blocks):
            super().swap_in(row, num_blocks)

    def free_host(self, row: int, num_blocks: int) -> None:
        with self._takes(0, host=-num_blocks):
            super().free_host(row, num_blocks)

    @contextmanager
    def _takes(self, num_blocks: int, host: int = 0) -> Iterator[None]:
        if self._inside:
            yield
            return
        expected = self.num_free - num_blocks, self.num_free_host - host
        self._inside = True
        yield
        self._inside = False
        self.operations += 1
        if (self.num_free, self.num_free_host) != expected:
            raise LeakError(f"{self.num_free} device and {self.num_free_host} host blocks are free, not {expected}")
        try:
            self.check()
        except AssertionError as error:
            raise LeakError(str(error)) from None
        on_device = sum(len(table) for table in self.tables.values())
        on_host = sum(len(table) for table in self.host_tables.values())
        if on_device + self.num_free != self.num_blocks or on_host + self.num_free_host != self.num_host_blocks:
            raise LeakError(f"{on_device} owned and {self.num_free} free of {self.num_blocks} blocks")
        if both := set(self.tables) & set(self.host_tables):
            raise LeakError(f"rows {sorted(both)} own blocks on both sides")


MOST_CPU_S = 1.0  # for one plan, over a dozen requests at most
_CAN_LIMIT = hasattr(signal, "setitimer")  # not on Windows


class LivelockError(Exception):
    """Too many plans in a row without a token."""


class TooLongError(BaseException):
    """A plan was not made in its CPU time. Not an Exception: a policy that catches these must not catch this."""


class Watched:
    """Passes the plans of `inner` on, and remembers when they were made; all other attributes are those of `inner`."""

    def __init__(self, inner: Policy, most_barren: int) -> None:
        self.inner = inner
        self.plans = 0
        self.now_s = 0.0
        self._most_barren = most_barren
        self._barren = 0
        self._tokens: tuple[int, int, int] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def max_num_seqs(self) -> int:
        return self.inner.max_num_seqs

    def plan(self, view: View) -> StepPlan:
        self.plans += 1
        self.now_s = view.now_s
        self._watch_tokens(view)
        if not (_CAN_LIMIT and signal.getsignal(signal.SIGVTALRM) is _too_long):
            return self.inner.plan(view)
        signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
        try:
            return self.inner.plan(view)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _watch_tokens(self, view: View) -> None:
        requests = [*view.waiting, *view.running]
        tokens = view.decode_steps, len(requests), sum(request.output_tokens_so_far for request in requests)
        self._barren = self._barren + 1 if tokens == self._tokens else 0
        self._tokens = tokens
        if self._barren > self._most_barren:
            running, waiting = len(view.running), len(view.waiting)
            raise LivelockError(
                f"{self._barren} plans in a row gave no token: {running} running, {waiting} waiting, "
                f"{view.num_free_blocks} of {view.num_blocks} blocks free"
            )


def watched(policy: Policy, most_barren: int) -> Watched:
    """Put a policy under watch. An error about it names its own class and file."""
    cls = type(policy)
    named = type(cls.__name__, (Watched,), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    under_watch: Watched = named(policy, most_barren)
    return under_watch


def _too_long(number: int, frame: object) -> None:
    raise TooLongError(f"a plan took more than {MOST_CPU_S:g} s of CPU time")


@contextmanager
def cpu_limit() -> Iterator[None]:
    """Raise TooLongError for a plan that takes more than MOST_CPU_S of CPU time, if the system has such a clock."""
    if not _CAN_LIMIT or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


BARREN_PLANS = 1000  # so many plans in a row, and two for each token of the workload, may give no token


@dataclass(frozen=True, slots=True)
class Trial:
    """An experiment (`scenarios.check.law_trial`) of a scenario as a user has it.

    `asked` collects the watched policies of its runs, the last one last.
    """

    scenario: Scenario
    workload: Workload
    policy: Policy
    parts: ReplicaParts
    asked: list[Watched] = field(default_factory=list)

    def new_policy(self) -> Policy:
        values = {name: getattr(self.policy, name) for name in policy_parameters(type(self.policy))}
        return load_policy(self.scenario.engine.policy, deepcopy(values))

    def on(self, workload: Workload) -> Trial:
        return replace(self, workload=workload)

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
        make_policy: Callable[[], Policy] | None = None,
    ) -> Run:
        if make_policy is None:
            policy = self.new_policy()
            make_policy = lambda: deepcopy(policy)  # noqa: E731 - as a run of the user's: a copy for each replica
        most_barren = BARREN_PLANS + 2 * int(self.workload.input_tokens.sum() + self.workload.max_tokens.sum())

        def make_watched() -> Policy:
            self.asked.append(watched(make_policy(), most_barren))
            return self.asked[-1]

        parts = self.parts
        if parts.make_blocks is not BlockLedger:  # a prefix cache is an account of its own
            make_blocks = parts.make_blocks
        return simulate(
            self.workload,
            make_policy=make_watched,
            kv=parts.kv,
            cost=parts.cost,
            swap_s_per_block=parts.swap_s_per_block,
            swap_overlap=parts.swap_overlap,
            make_blocks=make_blocks,
            replicas=self.scenario.replicas,
            router=build_router(self.scenario),
            fast_forward=fast_forward,
            log_decisions=log_decisions,
        )

    def base_run(self) -> Run:
        """Run with one event a step, a log of decisions and checked blocks. Raises LeakError for a lost block."""
        return self.run(log_decisions=True, make_blocks=CheckingBlocks, fast_forward=False)


def make_trial(scenario: Scenario, workload: Workload) -> Trial:
    """Build the trial of a scenario. Raises InputError where the scenario's parts do not fit together."""
    parts = build(scenario)
    return Trial(scenario, workload, parts.make_policy(), parts)
