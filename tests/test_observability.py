"""What OpenTelemetry, Prometheus and readers of logs are told, by the real packages."""

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

import heretix
from faultserver import FaultServer, answer, status
from heretix.accounts import LOCAL
from heretix.core import telemetry
from heretix.core.errors import ConfigError, StoreBusyError
from heretix.core.settings import Settings
from heretix.jobs import Jobs, MeasureRequest, Worker
from heretix.observability import (
    Instruments,
    PrometheusMetrics,
    counting_jobs,
    logging_json,
    observe,
    pushing,
)
from heretix.store import Store

REPOSITORY = Path(__file__).parents[1]
CLAIM = "Coffee beans are seeds."


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Seen:
    """Metrics and spans, kept in memory."""

    def __init__(self):
        self._reader, self._exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters = MeterProvider([self._reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))

    def observed(self):
        return observe(meters=self.meters, tracers=self.tracers)

    @property
    def spans(self):
        return self._exporter.get_finished_spans()

    def points(self, name):
        """Data points of a metric, by their labels."""
        found = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        found[tuple(sorted(point.attributes.items()))] = point
        return found

    def total(self, name, **labels):
        """The sum, or for a duration the number, of the points that have all these labels."""
        chosen = [p for key, p in self.points(name).items() if labels.items() <= dict(key).items()]
        return sum(p.count if hasattr(p, "count") else p.value for p in chosen)


def test_metrics_say_what_the_record_says():
    """Calls, tokens and cost add up to the record's own; nothing was made again."""
    seen = Seen()
    with seen.observed():
        usage = heretix.measure(CLAIM, model="mock:gpt-5").record.usage
    assert seen.total("heretix.calls", model="mock:gpt-5") == usage.attempted
    assert seen.total("heretix.call.duration") == usage.attempted
    assert seen.total("heretix.tokens", direction="input") == usage.tokens_in
    assert seen.total("heretix.tokens", direction="output") == usage.tokens_out
    assert seen.total("heretix.cost") == usage.cost_usd == 0
    assert seen.total("heretix.retries") == 0
    assert seen.total("heretix.store.transaction.duration", kind="write") > 0
    before = seen.total("heretix.calls")
    heretix.measure("Tea is a plant.", model="mock:gpt-5")
    assert seen.total("heretix.calls") == before, "nobody watches any more"
    assert telemetry.watchers == telemetry.spanners == []


def test_retries_failures_and_dollars_are_counted(tmp_path, monkeypatch):
    """A call that failed has its kind of error, the next try is a retry, and the price is charged."""
    prices = tmp_path / "prices.yaml"
    price = "{input: 1.0, output: 2.0, as_of: 2026-10-03}"
    prices.write_text(f"openai-compatible:\n  models:\n    m: {price}\n")
    seen = Seen()
    with FaultServer() as server, seen.observed():
        server.script(status(503))
        server.always(answer())
        monkeypatch.setenv("HERETIX_PRICES", str(prices))
        monkeypatch.setenv("HERETIX_BASE_URL", server.url("openai-compatible"))
        usage = heretix.measure(CLAIM, model="openai-compatible:m").record.usage
    assert usage.attempted == seen.total("heretix.calls") - 1
    assert seen.total("heretix.retries", model="openai-compatible:m") == 1
    assert seen.total("heretix.calls", **{"error.type": "ServerError"}) == 1
    assert seen.total("heretix.cost") == pytest.approx(usage.cost_usd, rel=1e-4)
    assert usage.cost_usd > 0
    failed = [span for span in seen.spans if not span.status.is_ok and "call" in span.name]
    assert [span.attributes["error.type"] for span in failed] == ["ServerError"]


def test_spans_of_calls_are_parts_of_the_measurement_and_hold_no_text():
    """One trace; each call names model, tokens and key. No claim, prompt or answer is in it."""
    seen = Seen()
    with seen.observed():
        record = heretix.measure(CLAIM, model="mock:gpt-5").record
    (whole,) = [span for span in seen.spans if span.name == "measure"]
    calls = [span for span in seen.spans if span.name == "call mock:gpt-5"]
    assert len(calls) == record.usage.attempted
    keys = {span.attributes["heretix.cache_key"] for span in calls}
    assert keys == {sample.cache_key for sample in record.samples}
    for span in calls:
        assert span.parent.span_id == whole.context.span_id
        assert span.attributes["gen_ai.request.model"] == "mock:gpt-5"
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert whole.start_time <= span.start_time <= span.end_time <= whole.end_time
    assert any(span.name == "store read" for span in seen.spans)
    assert "Coffee" not in "".join(span.to_json() for span in seen.spans)


def locked():
    """Count the jobs of a store that is locked."""
    raise StoreBusyError("it is locked")


def test_the_queue_is_counted_when_somebody_asks(monkeypatch):
    """Jobs by state; a worker's are timed by how they ended. A store that fails isn't empty."""
    seen = Seen()
    request = MeasureRequest.parse({"claims": [CLAIM], "models": ["mock:a"], "K": 4, "R": 1})
    with Store.open("jobs.sqlite") as store, counting_jobs(store), seen.observed():
        jobs = Jobs(store, Settings())
        for key in ("one", "two"):
            jobs.submit(LOCAL, request, key=key)
        assert seen.total("heretix.jobs", state="queued") == 2
        asyncio.run(Worker(store, Settings()).run_until_idle())
        assert seen.total("heretix.jobs", state="queued") == 0
        assert seen.total("heretix.job.duration", kind="measure", state="done") == 2
        (job, *_) = [span for span in seen.spans if span.name == "job"]
        assert job.attributes["heretix.job_id"]

        with monkeypatch.context() as patch:
            patch.setattr(telemetry, "queues", [locked])
            assert seen.points("heretix.jobs") == {}


def test_the_page_names_every_metric_and_no_other():
    """Each has a row of its own in the documentation."""
    made = []

    class Meter:
        def __getattr__(self, _):
            return lambda name, *args, **options: made.append(name)

    class Meters:
        def get_meter(self, *_):
            return Meter()

    Instruments(Meters(), TracerProvider())
    page = (REPOSITORY / "docs" / "observability.md").read_text()
    assert sorted(re.findall(r"^\| `(heretix\.[a-z.]+)` \|", page, re.MULTILINE)) == sorted(made)


def test_the_snippet_of_the_page_runs():
    """As it is written, and it is heard by whatever providers the program has set up."""
    page = (REPOSITORY / "docs" / "observability.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    heard = []
    with telemetry.watched_by(heard.append):
        exec(compile(snippet, "observability.md", "exec"), {})
    assert {type(event) for event in heard} == {telemetry.CallEnded, telemetry.TransactionEnded}
    assert telemetry.spanners == []


def scrape(url):
    """What Prometheus's own parser reads there: the value of each series, by name and labels."""
    with urllib.request.urlopen(url, timeout=60) as answered:
        text = answered.read().decode()
    found = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if not k.startswith("otel_")}
            found[sample.name, *sorted(labels.items())] += sample.value
    return found


def test_prometheus_reads_a_worker_on_a_port_of_its_own():
    """In Prometheus's names; a port that is taken is a mistake with a remedy."""
    request = MeasureRequest.parse({"claims": [CLAIM], "models": ["mock:a"], "K": 4, "R": 1})
    with Store.open("jobs.sqlite") as store, counting_jobs(store), PrometheusMetrics() as scraped:
        port = scraped.serve("127.0.0.1", 0)
        jobs = Jobs(store, Settings())
        jobs.submit(LOCAL, request)
        asyncio.run(Worker(store, Settings()).run_until_idle())
        jobs.submit(LOCAL, request)
        found = scrape(f"http://127.0.0.1:{port}/metrics")
        with pytest.raises(ConfigError, match=r"--metrics-port.*choose another"):
            scraped.serve("127.0.0.1", port)
    assert found["heretix_calls_total", ("model", "mock:a")] == 4
    assert found["heretix_jobs", ("state", "queued")] == 1
    assert found["heretix_jobs", ("state", "running")] == 0
    done = ("heretix_job_duration_seconds_count", ("kind", "measure"), ("state", "done"))
    assert found[done] == 1
    assert found["heretix_store_transaction_duration_seconds_count", ("kind", "write")] > 0
    assert telemetry.watchers == []


@pytest.fixture
def collector():
    """A collector that takes OTLP; what it was sent, by path."""
    taken = defaultdict(list)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            taken[self.path].append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", taken
        server.shutdown()
        thread.join()


def names_of(taken):
    """Names of the service, its metrics and its spans, as the collector was sent them."""
    services, metrics, spans = set(), set(), set()
    for body in taken["/v1/metrics"]:
        for one in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            services |= {
                a.value.string_value for a in one.resource.attributes if a.key == "service.name"
            }
            metrics |= {metric.name for scope in one.scope_metrics for metric in scope.metrics}
    for body in taken["/v1/traces"]:
        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            spans |= {span.name for scope in one.scope_spans for span in scope.spans}
    return services, metrics, spans


def test_a_command_pushes_where_the_variables_say(collector, entry_point, monkeypatch):
    """Before it ends, all of it; with the name that the environment gives."""
    url, taken = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    ended = entry_point("run", "Coffee beans are seeds.", "-m", "mock:gpt-5", "-K", 4, "-R", 1)
    assert ended.code == 0, ended.err
    services, metrics, spans = names_of(taken)
    assert services == {"nightly"}
    assert {"heretix.calls", "heretix.tokens", "heretix.cost"} <= metrics
    assert {"measure", "call mock:gpt-5"} <= spans


def test_what_is_not_wanted_is_not_pushed(collector, monkeypatch):
    """`none` for one kind leaves the other; without an address nothing is loaded."""
    url, taken = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with pushing():
        heretix.measure(CLAIM, model="mock:gpt-5", K=4, R=1)
    assert taken.keys() == {"/v1/traces"}
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    with pushing():
        assert telemetry.watchers == []


def test_a_collector_that_is_away_changes_nothing():
    """The measurement is made and shown; that nobody listened is told beside it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
    env = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "heretix", "run", "Tea.", "-m", "mock:gpt-5", "-K", "4", "-R", "1"],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0
    assert "stored in" in ended.stdout
    assert "Failed to export" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_the_extra_nothing_happens_or_a_remedy_is_told(monkeypatch):
    """Variables that are meant for other programs are no mistake; an option is one."""
    for name in list(sys.modules):
        if name.partition(".")[0] in {"opentelemetry", "prometheus_client"}:
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with pushing():
        assert telemetry.watchers == []
    for start in (PrometheusMetrics, observe().__enter__):
        with pytest.raises(ConfigError, match=r"uv sync --extra otel"):
            start()


def test_logs_are_lines_of_json(capsys):
    """Calls with their numbers, errors with their trace, both joined to the span they are part of."""
    seen = Seen()
    with logging_json(), seen.observed():
        heretix.measure(CLAIM, model="mock:gpt-5", K=4, R=1)
        try:
            raise ValueError('a "quoted"\nmessage')
        except ValueError:
            logging.getLogger("heretix.web").exception("incident %s", 7)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    calls = [line for line in lines if line.get("event") == "call"]
    assert len(calls) == 4
    assert {line["model"] for line in calls} == {"mock:gpt-5"}
    assert all(line["level"] == "info" and line["tokens_in"] > 0 for line in calls)
    (whole,) = [span for span in seen.spans if span.name == "measure"]
    assert {line["trace_id"] for line in calls} == {f"{whole.context.trace_id:032x}"}
    last = lines[-1]
    assert (last["level"], last["logger"]) == ("error", "heretix.web")
    assert last["message"] == "incident 7"
    assert 'a "quoted"\nmessage' in last["exception"]
    assert telemetry.watchers == []
