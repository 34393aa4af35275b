"""Prefill and decode apart, by the rules of vLLM's NIXL pull connector (0.33: nixl/pull_scheduler.py).

The server that prefills keeps the blocks of a request until they are sent. The one that decodes loads the prompt of a
request once, between steps: after a preemption it computes the prompt itself, as it does after a load that failed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Le, doc

from simulator.division import cdiv
from simulator.engine.itemized_step import ItemizedRequest
from simulator.engine.parts.connector import Arrivals
from simulator.parameters import Seconds, check_parameters
from simulator.request import Request
from simulator.request_state import FINISHED
from simulator.speculative import Found, Send

# Prefill and decode apart, by the rules of vLLM's NIXL pull connector (0.33: nixl/pull_scheduler.py).
# The server that prefills keeps the blocks of a request until they are sent. The one that decodes loads the prompt
# of a request once, between steps: after a preemption it computes the prompt itself, as it does after a load that
# failed.

_NOTHING = Found(0, later=False)


@dataclass(frozen=True, slots=True)
class PullConfig:
    """The link of one server, with what it does after a load that failed. ValueError as for other parameters.

    A transfer takes `latency_s` and its bytes divided by the bandwidth; one follows the other. A request's blocks are
    asked for `pull_delay_s` after it has ended.
    """

    role: Annotated[Literal["prefill", "decode"], doc("which half of a request is served here")]
    block_bytes: Annotated[int, Gt(0), doc("bytes of a block, over all GPUs of the replica")]
    bandwidth: Annotated[float, Gt(0), Le(1e15), doc("bytes a second of the link")]
    latency_s: Annotated[Seconds, doc("seconds of a transfer beside its bytes")] = 0.0
    pull_delay_s: Annotated[Seconds, doc("from the end of a prefill to its transfer")] = 0.0
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"], doc("what becomes of a request whose load failed")
    ] = "fail"

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(frozen=True, slots=True)
class Remote:
    """A request's KV on the other server: nothing is known of it before `known_s`, and its transfer may fail."""

    is_there: bool = True
    known_s: float = 0.0
    fails: bool = False


class Pull:
    """A `Connector` between two servers: that of one of them. `remotes` are by row; others are computed here."""

    def __init__(self, config: PullConfig, remotes: Mapping[int, Remote], block_size: int, *, overlaps: bool) -> None:
        consumes = config.role == "decode"
        self.is_fenced = overlaps and consumes
        self.drops_late = not consumes
        self.fails_requests = config.kv_load_failure_policy == "fail"
        self._config = config
        self._size = block_size
        self._remotes = dict(remotes)
        self.now_s = 0.0
        self._link_s = 0.0  # when the link has done what it was given
        self._any_ended = False
        self._pulls: list[tuple[ItemizedRequest, int, bool]] = []  # of this step: blocks, and whether it fails
        self._receiving: list[tuple[float, int, bool]] = []
        self._sending: list[tuple[float, int]] = []
        self._send: Send | None = None

    def record(self, replica: int, copied: Callable[[tuple[float, ...]], None]) -> None:
        """Transfers are recorded by the fleet."""

    def attach(self, send: Send) -> bool:
        """Let the fleet send: its link is shared, and it tells the other server."""
        self._send = send
        return True

    def offer(self, row: int, *, fails: bool) -> None:
        """The other server has a request's KV."""
        self._remotes[row] = Remote(fails=fails)

    def look(self, request: Request, live: ItemizedRequest, computed_tokens: int) -> Found | None:
        """The whole prompt behind the local hit, if the other server has it."""
        remote = self._remotes.get(request.row)
        if remote is None:
            return _NOTHING
        if remote.known_s > self.now_s:
            return None
        tokens = live.input_tokens - computed_tokens
        return Found(tokens, later=True) if remote.is_there and tokens > 0 else _NOTHING

    def admitted(self, request: Request, live: ItemizedRequest, found: Found, local_tokens: int) -> None:
        remote = self._remotes.pop(request.row, None)
        if remote is None:
            return
        if remote.known_s > 0:
            self._remotes[request.row] = Remote(is_there=False, known_s=remote.known_s)
        if self._send is not None and not found.tokens:
            self._send(request.row, 0)
        if found.tokens:
            blocks = cdiv(local_tokens + found.tokens, self._size) - local_tokens // self._size
            self._pulls.append((live, blocks, remote.fails))

    def planned(self, scheduled: Sequence[tuple[ItemizedRequest, int]], preempted: Sequence[ItemizedRequest]) -> None:
        self._any_ended = False

    def before(self, now_s: float, busy_until_s: float) -> float:
        return now_s

    def after(self, ready_s: float, busy_until_s: float) -> Arrivals:
        """Begin the loads, which wait for the link alone, and see which transfers have ended."""
        for live, blocks, fails in self._pulls:
            end_s = self._transfer(ready_s, blocks) if self._send is None else self._send(live.row, blocks)
            self._receiving.append((end_s, live.row, fails))
        self._pulls.clear()
        got = [entry for entry in self._receiving if entry[0] <= ready_s]
        sent = [entry for entry in self._sending if entry[0] <= ready_s]
        self._receiving = [entry for entry in self._receiving if entry[0] > ready_s]
        self._sending = [entry for entry in self._sending if entry[0] > ready_s]
        failed = [row for _, row, fails in got if fails]
        return Arrivals([row for _, row, _ in got], failed, [row for _, row in sent])

    def _transfer(self, from_s: float, num_blocks: int) -> float:
        """When a transfer ends that may begin at `from_s`."""
        config = self._config
        start_s = max(from_s, self._link_s)
        self._link_s = start_s + config.latency_s + num_blocks * config.block_bytes / config.bandwidth
        return self._link_s

    def arrived(self, arrivals: Arrivals) -> None:
        pass

    def keeps(self, live: ItemizedRequest, now_s: float) -> bool:
        """A prefilled request's blocks stay until they are sent."""
        blocks = live.num_blocks
        if self._config.role != "prefill" or live.status is not FINISHED or not blocks:
            return False
        self._sending.append((self._transfer(now_s + self._config.pull_delay_s, blocks), live.row))
        return True

    def ended(self, row: int) -> None:
        self._any_ended = True
        self._remotes.pop(row, None)

    def told(self) -> dict[str, int]:
        return {}

    @property
    def has_work(self) -> bool:
        return self._any_ended
