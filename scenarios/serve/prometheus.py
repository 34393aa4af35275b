"""/metrics: the run in Prometheus' text format, by vLLM's names (`simulator.metrics.vllm_metrics`).

Times are the simulation's own seconds, whatever the time scale. `engine` is the replica's number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from simulator.metrics.vllm_metrics import (
    CONFIG,
    CONFIG_LABELS,
    COUNTERS,
    GAUGES,
    LABELS,
    PREFIX,
    QUEUE_LIMIT,
    REASONS,
    REJECTIONS,
    SUCCESS,
    buckets,
    help_of,
)
from simulator.request_state import RequestState
from simulator.results.records import Status
from simulator.traffic.live import LiveTraffic

_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LAGS = 100_000  # the last half an hour of them


class Meters:
    """The server's counters. `reasons` says, by row, why an answer ends."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self._last: dict[
            int, tuple[float | None, int]
        ] = {}  # by row: when the client had its last token, and how many then
        self._live: LiveTraffic | None = None
        self._tokens: list[Counter] = []  # by replica, as `labels` takes longer than all the rest
        self._gaps: list[Histogram] = []
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self.reasons: dict[int, str] = {}
        self._max_model_len = max_model_len
        counters = {name: self._counter(name) for name in COUNTERS}
        self._prompt, self._generation = counters["prompt_tokens"], counters["generation_tokens"]
        self._preempted = counters["num_preemptions"]
        self._queries, self._hits = counters["prefix_cache_queries"], counters["prefix_cache_hits"]
        name, told = SUCCESS
        self._success = Counter(PREFIX + name, told, (*LABELS, "finished_reason"), registry=self._registry)
        name, told = REJECTIONS
        self._rejected = Counter(PREFIX + name, told, ("model_name", "reason"), registry=self._registry)
        self._ttft = self._histogram("time_to_first_token_seconds")
        self._itl = self._histogram("inter_token_latency_seconds")
        self._tpot = self._histogram("request_time_per_output_token_seconds")
        self._e2e = self._histogram("e2e_request_latency_seconds")
        self._queue = self._histogram("request_queue_time_seconds")
        self._inference = self._histogram("request_inference_time_seconds")
        self._prefill = self._histogram("request_prefill_time_seconds")
        self._decode = self._histogram("request_decode_time_seconds")
        self._inputs = self._histogram("request_prompt_tokens")
        self._outputs = self._histogram("request_generation_tokens")
        self._cap = self._histogram("request_params_max_tokens")
        self._n = self._histogram("request_params_n")
        self._preemptions = self._histogram("request_num_preemptions")
        self.lag = Histogram(
            "batchlab:event_loop_lag_seconds",
            "How late the server's event loop ran a timer, in seconds of the wall clock.",
            buckets=_LAG,
            registry=self._registry,
        )

    def _counter(self, name: str) -> Counter:
        return Counter(PREFIX + name, COUNTERS[name], LABELS, registry=self._registry)

    def _histogram(self, name: str) -> Histogram:
        bounds = buckets(name, self._max_model_len)
        return Histogram(PREFIX + name, help_of(name), LABELS, buckets=bounds, registry=self._registry)

    def watch(self, live: LiveTraffic) -> None:
        """Gauges are those of this run; its replicas count from 0 on."""
        self._live = live
        for replica in live.replicas:
            labels = self._model, str(replica.index)
            for meter in (self._prompt, self._generation, self._preempted, self._queries, self._hits):
                meter.labels(*labels)
            for reason in REASONS:
                self._success.labels(*labels, reason)
        self._tokens = [self._generation.labels(self._model, str(replica.index)) for replica in live.replicas]
        self._gaps = [self._itl.labels(self._model, str(replica.index)) for replica in live.replicas]
        self._rejected.labels(self._model, QUEUE_LIMIT)
        self._registry.register(_Gauges(self._model, live))

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text

    # The event loop

    def lagged(self, seconds: float) -> None:
        """A timer came so late."""
        self.lag.observe(seconds)
        self._lags.append(max(0.0, seconds))

    def lag_text(self) -> str:
        """Return a sentence on how late timers were."""
        lags = sorted(self._lags)
        if not lags:
            return "event loop lag: not measured"
        p50, p99 = (1000 * lags[int(share * (len(lags) - 1))] for share in (0.5, 0.99))
        return f"event loop lag: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {1000 * lags[-1]:.1f} ms"

    # What happens

    def asked(self, caps: Sequence[int], n: int) -> None:
        """A call has come: its `n`, and the cap of each of its requests."""
        self._n.labels(self._model, "0").observe(n)
        for cap in caps:
            self._cap.labels(self._model, "0").observe(cap)

    def queue_was_full(self) -> None:
        """A call was rejected by the limit of the queue."""
        self._rejected.labels(self._model, QUEUE_LIMIT).inc()

    def has_tokens(self, row: int, tokens: int, replica: int, arrival_s: float, seen_s: float) -> None:
        """A client has so many tokens of a request from `seen_s` on."""
        replica = max(replica, 0)
        last_s, before = self._last.get(row, (None, 0))
        if last_s is None:
            self._ttft.labels(self._model, str(replica)).observe(seen_s - arrival_s)
        else:
            self._gaps[replica].observe(seen_s - last_s)
        self._tokens[replica].inc(tokens - before)
        self._last[row] = seen_s, tokens

    def ended(self, row: int) -> None:
        """A request has ended for its client."""
        self._last.pop(row, None)

    def left(self, live: RequestState, replica: int, status: Status) -> None:
        """The engine has let a request go."""
        row, labels = live.row, (self._model, str(max(replica, 0)))
        reason = self.reasons.pop(row, "stop")
        if status is Status.REJECTED:
            return
        setbacks = live.setbacks
        if setbacks is not None:
            self._preempted.labels(*labels).inc(setbacks.preemptions)
            self._hits.labels(*labels).inc(setbacks.cached_tokens)
        if status is not Status.FINISHED:
            self._success.labels(*labels, "abort").inc()
            return
        self._success.labels(*labels, reason).inc()
        self._prompt.labels(*labels).inc(live.input_tokens)
        if self._live is not None and self._live.replicas[replica].state.cache is not None:
            self._queries.labels(*labels).inc(live.input_tokens)
        late_s = 0.0 if self._live is None else self._live.delay_s(row)
        first_s, last_s, outputs = live.first_token_s, live.last_token_s, live.base_outputs
        self._e2e.labels(*labels).observe(last_s - live.arrival_s + late_s)
        self._queue.labels(*labels).observe(live.scheduled_s - live.arrival_s)
        self._inference.labels(*labels).observe(last_s - live.scheduled_s)
        self._prefill.labels(*labels).observe(first_s - live.scheduled_s)
        self._decode.labels(*labels).observe(last_s - first_s)
        self._inputs.labels(*labels).observe(live.input_tokens)
        self._outputs.labels(*labels).observe(outputs)
        if outputs > 1:
            self._tpot.labels(*labels).observe((last_s - first_s) / (outputs - 1))
        self._preemptions.labels(*labels).observe(live.num_preemptions)


class _Gauges(Collector):  # type: ignore[misc] # untyped: an extra is not looked into
    """Values that are read off the replicas when they are asked for."""

    def __init__(self, model: str, live: LiveTraffic) -> None:
        self._model = model
        self._live = live

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The families, as prometheus_client wants them."""
        families = {name: GaugeMetricFamily(PREFIX + name, told, labels=LABELS) for name, told in GAUGES.items()}
        name, told = CONFIG
        config = GaugeMetricFamily(PREFIX + name, told, labels=CONFIG_LABELS)
        for replica in self._live.replicas:
            labels, load, state = [self._model, str(replica.index)], replica.load, replica.state
            families["num_requests_running"].add_metric(labels, load.num_running)
            families["num_requests_waiting"].add_metric(labels, load.num_waiting)
            families["kv_cache_usage_perc"].add_metric(labels, load.kv_utilization)
            cached = str(state.cache is not None)
            about = [str(state.batch.block_size), str(load.num_blocks + 1), cached]
            config.add_metric([*labels, *about], 1)
        yield from families.values()
        yield config
