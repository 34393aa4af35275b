"""/metrics: the run in Prometheus' text format, by vLLM's names, labels and buckets (0.33, `v1/metrics/loggers.py`).

Times are the simulation's own seconds, whatever the time scale. `engine` is the replica's number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from simulator.request_state import RequestState
from simulator.results.records import Status
from simulator.traffic.live import Live

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_PARAMS_N = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LAGS = 100_000  # the last half an hour of them
_LABELS = ("model_name", "engine")


def one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 and so on, up to `most`."""
    return [float(m * 10**e) for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most]


class Meters:
    """What the server counts. `reasons` says, by row, why an answer ends."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self._last: dict[
            int, tuple[float | None, int]
        ] = {}  # by row: when the client had its last token, and how many then
        self._live: Live | None = None
        self._tokens: list[Counter] = []  # by replica, as `labels` takes longer than all the rest
        self._gaps: list[Histogram] = []
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self.reasons: dict[int, str] = {}
        tokens = one_two_five(max_model_len)
        self._prompt = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._generation = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._preempted = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self._queries = self._counter("prefix_cache_queries", "Prefix cache queries, in number of queried tokens.")
        self._hits = self._counter("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.")
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._rejected = Counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ("model_name", "reason"),
            registry=self._registry,
        )
        self._ttft = self._histogram("time_to_first_token_seconds", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", _ITL)
        self._tpot = self._histogram("request_time_per_output_token_seconds", _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", _LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", _LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", _LATENCY)
        self._inputs = self._histogram("request_prompt_tokens", tokens)
        self._outputs = self._histogram("request_generation_tokens", tokens)
        self._cap = self._histogram("request_params_max_tokens", tokens)
        self._n = self._histogram("request_params_n", _PARAMS_N)
        self._preemptions = self._histogram("request_num_preemptions", _PREEMPTIONS)
        self.lag = Histogram(
            "batchlab:event_loop_lag_seconds",
            "How late the server's event loop ran a timer, in seconds of the wall clock.",
            buckets=_LAG,
            registry=self._registry,
        )

    def _counter(self, name: str, told: str) -> Counter:
        return Counter(f"vllm:{name}", told, _LABELS, registry=self._registry)

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        told = f"Histogram of {name.replace('_', ' ')}."
        return Histogram(f"vllm:{name}", told, _LABELS, buckets=buckets, registry=self._registry)

    def watch(self, live: Live) -> None:
        """Gauges are those of this run; its replicas count from 0 on."""
        self._live = live
        for replica in live.replicas:
            labels = self._model, str(replica.index)
            for meter in (self._prompt, self._generation, self._preempted, self._queries, self._hits):
                meter.labels(*labels)
            for reason in ("stop", "length", "abort"):
                self._success.labels(*labels, reason)
        self._tokens = [self._generation.labels(self._model, str(replica.index)) for replica in live.replicas]
        self._gaps = [self._itl.labels(self._model, str(replica.index)) for replica in live.replicas]
        self._rejected.labels(self._model, "max_num_queued_reqs")
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
        """How late timers were, in a sentence."""
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
        self._rejected.labels(self._model, "max_num_queued_reqs").inc()

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
    """What is read off the replicas when it is asked for."""

    def __init__(self, model: str, live: Live) -> None:
        self._model = model
        self._live = live

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The families, as prometheus_client wants them."""
        gauges = {
            "num_requests_running": "Number of requests in model execution batches.",
            "num_requests_waiting": "Number of requests waiting to be processed.",
            "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
        }
        families = {name: GaugeMetricFamily(f"vllm:{name}", told, labels=_LABELS) for name, told in gauges.items()}
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=(*_LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching"),
        )
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
