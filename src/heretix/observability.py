"""Events as OpenTelemetry's metrics and spans, as a page for Prometheus, and as JSON logs.

Everything is heard from `core.telemetry`; no other module knows OpenTelemetry. It needs the extra
`otel`. Claims, prompts and answers are in none of it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from heretix.accounts.audit import REQUEST_ID
from heretix.core import telemetry
from heretix.core.clock import utc_text
from heretix.core.errors import ConfigError, StoreError
from heretix.core.telemetry import CallEnded, JobEnded, RequestEnded, TransactionEnded
from heretix.store import jobs as rows
from heretix.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from heretix.store import Store

PUSHED: Final = {
    kind: ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT")
    for kind in ("METRICS", "TRACES")
}
"""Variables of OpenTelemetry's own, either of which says where to push."""
_PUSH_S: Final = 2.0
"""A collector that isn't there keeps nobody waiting for long at the end."""
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_log: Final = logging.getLogger(__name__)


class Instruments:
    """Every metric and span there is, on the providers of whoever watches."""

    def __init__(self, meters: MeterProvider, tracers: TracerProvider) -> None:
        self._tracer = tracers.get_tracer("heretix", VERSION)
        meter = meters.get_meter("heretix", VERSION)

        def timer(name: str, what: str) -> Any:
            return meter.create_histogram(
                f"heretix.{name}.duration", "s", what, explicit_bucket_boundaries_advisory=_SECONDS
            )

        count = meter.create_counter
        self._calls = count("heretix.calls", "{call}", "Calls of models that ended")
        self._retries = count("heretix.retries", "{call}", "Calls made again")
        self._tokens = count("heretix.tokens", "{token}", "Tokens, as providers told")
        self._cost = count("heretix.cost", "USD", "Cost of calls, where it is known")
        self._call_s = timer("call", "Calls of models")
        self._store_s = timer("store.transaction", "Transactions of the store, waiting included")
        self._job_s = timer("job", "Jobs in a worker's hands")
        self._request_s = timer("request", "Requests to the server")
        meter.create_observable_gauge(
            "heretix.jobs", [_count_jobs], "{job}", "Jobs that wait for a worker, or have one"
        )

    def watch(self, event: telemetry.Event) -> None:
        """Count what happened; make a span of it."""
        match event:
            case CallEnded():
                self._note_call(event)
            case TransactionEnded(kind=kind, seconds=seconds, error=error):
                of = {"kind": kind, **_tag_failure(error)}
                self._store_s.record(seconds, of)
                self._trace(f"store {kind}", seconds, of, error, alone=False)
            case JobEnded(seconds=seconds):
                self._job_s.record(seconds, {"kind": event.kind, "state": event.state})
            case RequestEnded(method=method, route=route, status=status, seconds=seconds):
                labels: dict[str, Any] = {
                    "http.request.method": method,
                    "http.route": route,
                    "http.response.status_code": status,
                }
                self._request_s.record(seconds, labels)
                labels |= {"heretix.request_id": event.request_id}
                error = str(status) if status >= 500 else None
                self._trace(f"{method} {route}", seconds, labels, error)

    def _note_call(self, event: CallEnded) -> None:
        model, seconds = {"model": event.model}, event.latency_ms / 1000
        error = None if event.error is None else event.error.partition(":")[0]
        self._calls.add(1, model | _tag_failure(error))
        self._call_s.record(seconds, model | _tag_failure(error))
        self._retries.add(int(event.attempt > 1), model)
        used = {"input": event.tokens_in, "output": event.tokens_out}
        told = {direction: count for direction, count in used.items() if count is not None}
        for direction, count in told.items():
            self._tokens.add(count, model | {"direction": direction})
        if event.cost_usd is not None:
            self._cost.add(event.cost_usd, model)
        details = {"heretix.cache_key": event.cache_key, "heretix.attempt": event.attempt}
        details |= {f"gen_ai.usage.{direction}_tokens": count for direction, count in told.items()}
        if event.response_id is not None:
            details["gen_ai.response.id"] = event.response_id
        named = {"gen_ai.request.model": event.model, **_tag_failure(error)}
        self._trace(f"call {event.model}", seconds, named | details, error)

    def _trace(
        self,
        name: str,
        seconds: float,
        attributes: Mapping[str, Any],
        error: str | None,
        *,
        alone: bool = True,
    ) -> None:
        """Make a span that ends now, a part of what goes on here; by itself only if `alone`."""
        from opentelemetry.trace import Status, StatusCode, get_current_span

        if not alone and not get_current_span().is_recording():
            return
        now_ns = time.time_ns()
        begun_ns = now_ns - round(seconds * 1e9)
        span = self._tracer.start_span(name, start_time=begun_ns, attributes=attributes)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(now_ns)

    def span(self, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
        """Begin a span that others are parts of."""
        named = {f"heretix.{key}": value for key, value in attributes.items()}
        return self._tracer.start_as_current_span(name, attributes=named, record_exception=False)


def _tag_failure(error: str | None) -> dict[str, str]:
    return {} if error is None else {"error.type": error}


def _count_jobs(_: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation

    for count in telemetry.queues:
        try:
            counts = count()
        except StoreError as exc:
            # What can't be counted is missing, not zero.
            _log.warning("jobs can't be counted: %s", exc)
            continue
        yield from (Observation(number, {"state": state}) for state, number in counts.items())


@contextmanager
def observe(
    *, meters: MeterProvider | None = None, tracers: TracerProvider | None = None
) -> Iterator[None]:
    """Tell OpenTelemetry what happens inside: its global providers, or those that are given."""
    try:
        from opentelemetry import metrics, trace
    except ImportError as exc:
        raise _make_missing_extra_error() from exc
    instruments = Instruments(
        meters or metrics.get_meter_provider(), tracers or trace.get_tracer_provider()
    )
    with ExitStack() as stack:
        stack.enter_context(telemetry.watched_by(instruments.watch))
        telemetry.spanners.append(instruments.span)
        stack.callback(telemetry.spanners.remove, instruments.span)
        yield


@contextmanager
def counting_jobs(store: Store) -> Iterator[None]:
    """Count the jobs of a store whenever somebody asks."""

    def count() -> Mapping[str, int]:
        return store.read(rows.count_jobs)

    telemetry.queues.append(count)
    try:
        yield
    finally:
        telemetry.queues.remove(count)


def _make_missing_extra_error() -> ConfigError:
    return ConfigError(
        "`opentelemetry` isn't installed: `uv sync --extra otel`, or `pip install '.[otel]'` in "
        "the clone"
    )


# Where it goes: to a collector that pulls, or one that is pushed to.


def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource

    # What the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) wins.
    name = os.environ.get("OTEL_SERVICE_NAME") or "heretix"
    return Resource.create({"service.name": name, "service.version": VERSION})


@contextmanager
def pushing() -> Iterator[None]:
    """Push metrics and spans by OTLP where the variables of OpenTelemetry say.

    Without the extra, or where they say nothing, nothing happens.
    """
    wanted = {kind for kind, names in PUSHED.items() if any(map(os.environ.get, names))}
    wanted -= {kind for kind in PUSHED if os.environ.get(f"OTEL_{kind}_EXPORTER") == "none"}
    if not wanted:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        # The variables may be meant for other programs.
        yield
        return
    # That it tries again is no news; that it gave up is.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.ERROR)
    timeout_s = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _PUSH_S
    readers = []
    if "METRICS" in wanted:
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(timeout=timeout_s)))
    meters = MeterProvider(readers, resource=_resource(), shutdown_on_exit=False)
    tracers = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    if "TRACES" in wanted:
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=timeout_s)))
    try:
        with observe(meters=meters, tracers=tracers):
            yield
    finally:
        tracers.force_flush()
        tracers.shutdown()
        meters.shutdown()


class PrometheusMetrics:
    """Metrics as Prometheus reads them; a context manager."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader
            from opentelemetry.sdk.metrics import MeterProvider
            from prometheus_client import CollectorRegistry
        except ImportError as exc:
            raise _make_missing_extra_error() from exc
        from opentelemetry.trace import NoOpTracerProvider

        self.registry: CollectorRegistry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self.registry)
        self._meters = MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)
        self._stack = ExitStack()
        self._stack.callback(self._meters.shutdown)
        self._stack.enter_context(observe(meters=self._meters, tracers=NoOpTracerProvider()))

    def page(self) -> tuple[bytes, str]:
        """Write the metrics of this moment, and the content type they have."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def serve(self, host: str, port: int) -> int:
        """Answer Prometheus in a thread; the port that it is."""
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, host, self.registry)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"`--metrics-port` {port} on {host} can't be listened on: "
                f"{getattr(exc, 'strerror', None) or exc}; choose another"
            ) from exc
        self._stack.callback(thread.join)
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        return int(server.server_port)

    def __enter__(self) -> PrometheusMetrics:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


# Logs for programs: a line of JSON each, with the ids that join it to requests and traces.


class JsonLines(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the time, the level and the message; then what is known besides."""
        line: dict[str, Any] = {
            "time": utc_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := REQUEST_ID.get()) is not None:
            line["request_id"] = request_id
        line |= _trace_ids() | getattr(record, "about", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _trace_ids() -> dict[str, str]:
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


_EVENTS: Final = {CallEnded: "call", JobEnded: "job", RequestEnded: "request"}


@contextmanager
def logging_json() -> Iterator[None]:
    """Log as JSON lines on standard error: what is logged anyway, and calls, jobs and requests."""
    root, ours = logging.getLogger(), logging.getLogger("heretix")
    before = root.handlers[:], ours.level
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root.handlers[:] = [handler]
    ours.setLevel(logging.INFO)

    def note(event: telemetry.Event) -> None:
        if (kind := _EVENTS.get(type(event))) is not None:
            _log.info("%s ended", kind, extra={"about": {"event": kind, **asdict(event)}})

    try:
        with telemetry.watched_by(note):
            yield
    finally:
        root.handlers[:], ours.level = before
