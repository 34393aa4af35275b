"""/metrics: the run in Prometheus' text format, by vLLM's names (`simulator.metrics.vllm_metrics`).

Times are the simulation's own seconds, whatever the time scale. `engine` is the replica's number.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from simulator.metrics.vllm_metrics import (
    CONFIG,
    CONFIG_LABELS,
    COUNTERS,
    DRAFT_COUNTERS,
    DRAFTS_BY_POSITION,
    GAUGES,
    HISTOGRAMS,
    LABELS,
    LORA,
    LORA_LABELS,
    PREFIX,
    QUEUE_LIMITS,
    REASONS,
    REJECTIONS,
    SUCCESS,
    TOKENS,
    buckets,
    help_of,
    lora_labels,
)
from simulator.request_state import RequestState
from simulator.results.records import Cause, Status
from simulator.traffic.live import LiveTraffic

_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_HISTOGRAMS = (*HISTOGRAMS, *TOKENS)
_LAGS = 100_000  # the last half an hour of them


class Meters:
    """The server's counters; of drafts, at most so many a step, too. `reasons` says, by row, why an answer ends."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model_name: str, max_model_len: int, drafts: int = 0) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self._last: dict[int, tuple[float, int]] = {}  # by row: when the client had its last token, and how many then
        self._live: LiveTraffic | None = None
        self._tokens: list[Counter] = []  # by replica, as `labels` takes longer than all the rest
        self._gaps: list[Histogram] = []
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self.reasons: dict[int, str] = {}
        own = self._registry
        counters = {**COUNTERS, **(DRAFT_COUNTERS if drafts else {})}
        self._counters = {name: Counter(PREFIX + name, told, LABELS, registry=own) for name, told in counters.items()}
        self._drafts = drafts
        if drafts:
            name, told = DRAFTS_BY_POSITION
            self._by_position = Counter(PREFIX + name, told, (*LABELS, "position"), registry=own)
        self._success = Counter(PREFIX + SUCCESS[0], SUCCESS[1], (*LABELS, "finished_reason"), registry=own)
        self._rejected = Counter(PREFIX + REJECTIONS[0], REJECTIONS[1], ("model_name", "reason"), registry=own)
        self._histograms = {
            name: Histogram(PREFIX + name, help_of(name), LABELS, buckets=buckets(name, max_model_len), registry=own)
            for name in _HISTOGRAMS
        }
        lag = "How late the server's event loop ran a timer, in seconds of the wall clock."
        self.lag = Histogram("batchlab:event_loop_lag_seconds", lag, buckets=_LAG, registry=own)

    def watch(self, live: LiveTraffic) -> None:
        """Take the gauges from this run; its replicas count from 0 on."""
        self._live = live
        every = [(self._model, str(replica.index)) for replica in live.replicas]
        for labels in every:
            for each in (*self._counters.values(), *self._histograms.values()):
                each.labels(*labels)  # shown as 0 before the first request, as vLLM does
            for reason in REASONS:
                self._success.labels(*labels, reason)
            for position in range(self._drafts):
                self._by_position.labels(*labels, str(position))
        self._tokens = [self._counters["generation_tokens"].labels(*labels) for labels in every]
        self._gaps = [self._histograms["inter_token_latency_seconds"].labels(*labels) for labels in every]
        self._rejected.labels(self._model, QUEUE_LIMITS[Cause.QUEUE_FULL])
        self._registry.register(_Gauges(self._model, live))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text

    # The event loop

    def lagged(self, seconds: float) -> None:
        """Note how late a timer came."""
        self.lag.observe(seconds)
        self._lags.append(max(0.0, seconds))

    def lag_text(self) -> str:
        """Say how late timers were."""
        lags = sorted(self._lags)
        if not lags:
            return "event loop lag: not measured"
        p50, p99 = (1000 * lags[int(share * (len(lags) - 1))] for share in (0.5, 0.99))
        return f"event loop lag: p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {1000 * lags[-1]:.1f} ms"

    # What happens

    def asked(self, caps: Sequence[int], n: int) -> None:
        """Count a call: its `n`, and the cap of each of its requests."""
        self._observe("0", request_params_n=n)
        for cap in caps:
            self._observe("0", request_params_max_tokens=cap)

    def _observe(self, engine: str, **values: float) -> None:
        for name, value in values.items():
            self._histograms[name].labels(self._model, engine).observe(value)

    def queue_was_full(self, cause: Cause) -> None:
        """Count a call that was rejected by a limit of the queue."""
        if cause in QUEUE_LIMITS:
            self._rejected.labels(self._model, QUEUE_LIMITS[cause]).inc()

    def has_tokens(self, row: int, tokens: int, replica: int, arrival_s: float, seen_s: float) -> None:
        """Count the tokens of a request that a client has from `seen_s` on."""
        replica = max(replica, 0)
        last_s, before = self._last.get(row, (None, 0))
        if last_s is None:
            self._observe(str(replica), time_to_first_token_seconds=seen_s - arrival_s)
        else:
            self._gaps[replica].observe(seen_s - last_s)
        self._tokens[replica].inc(tokens - before)
        self._last[row] = seen_s, tokens

    def ended(self, row: int) -> None:
        """Forget a request that has ended for its client."""
        self._last.pop(row, None)

    def left(self, live: RequestState, replica: int, status: Status) -> None:
        """Count a request that the engine has let go."""
        row, engine, counters = live.row, str(max(replica, 0)), self._counters
        labels = self._model, engine
        reason = self.reasons.pop(row, "stop")
        if status is Status.REJECTED:
            return
        if (setbacks := live.setbacks) is not None:
            counters["num_preemptions"].labels(*labels).inc(setbacks.preemptions)
            counters["prefix_cache_hits"].labels(*labels).inc(setbacks.cached_tokens)
        if self._drafts and live.draft_counts:
            self._count_drafts(live.draft_counts, labels)
        self._success.labels(*labels, reason if status is Status.FINISHED else "abort").inc()
        if status is not Status.FINISHED:
            return
        counters["prompt_tokens"].labels(*labels).inc(live.input_tokens)
        if self._live is not None and self._live.replicas[replica].state.cache is not None:
            counters["prefix_cache_queries"].labels(*labels).inc(live.input_tokens)
        late_s = 0.0 if self._live is None else self._live.delay_s(row)
        first_s, last_s, outputs = live.first_token_s, live.last_token_s, live.base_outputs
        self._observe(
            engine,
            e2e_request_latency_seconds=last_s - live.arrival_s + late_s,
            request_queue_time_seconds=live.scheduled_s - live.arrival_s,
            request_inference_time_seconds=last_s - live.scheduled_s,
            request_prefill_time_seconds=first_s - live.scheduled_s,
            request_decode_time_seconds=last_s - first_s,
            request_prompt_tokens=live.input_tokens,
            request_generation_tokens=outputs,
            request_num_preemptions=live.num_preemptions,
        )
        if outputs > 1:
            self._observe(engine, request_time_per_output_token_seconds=(last_s - first_s) / (outputs - 1))

    def _count_drafts(self, counts: Mapping[tuple[int, int], int], labels: tuple[str, str]) -> None:
        """Count the verify steps of a request, by drafts and accepted drafts."""
        drafts, tokens, accepted = (self._counters[name].labels(*labels) for name in DRAFT_COUNTERS)
        for (proposed, kept), steps in counts.items():
            drafts.inc(steps)
            tokens.inc(steps * proposed)
            accepted.inc(steps * kept)
            for position in range(kept):
                self._by_position.labels(*labels, str(position)).inc(steps)


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
            about = [str(state.batch.block_size), str(load.num_blocks + 1), str(state.cache is not None)]
            config.add_metric([*labels, *about], 1)
        yield from families.values()
        yield config
        loads = [replica.load for replica in self._live.replicas if replica.load.max_loras]
        if loads:
            name, told = LORA
            info = GaugeMetricFamily(PREFIX + name, told, labels=LORA_LABELS)
            labels = lora_labels(loads[0].max_loras, (lora for load in loads for lora in load.loras))
            info.add_metric(labels, self._live.now_s)
            yield info
