"""Spans of OpenTelemetry: parents from headers, links from records, nothing where it is off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.errors import InvalidRequest
from lamina.records import HEADERS
from lamina.server import tracing
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from lamina.wire.messages import Question, encode_question
from tests.server.kafka.raw_client import RawClient, fetched, made, produced
from tests.server.rig import served

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Service, Any]]:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    kept = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    with served(tmp_path / "data", kafka_port=0) as service:
        service.broker.tracing = tracing.OtelTracing(provider)
        service.broker.store.create_topic("t")
        yield service, kept
    provider.shutdown()


def test_http_continues_the_trace_of_its_caller(traced: Any) -> None:
    service, kept = traced
    url = f"{service.http_url}/v1/topics/t"
    headers = {"traceparent": PARENT}
    body = {"records": [{"value": "x"}]}
    assert httpx.post(f"{url}/records", json=body, headers=headers).status_code == 200
    assert httpx.get(f"{url}/partitions/0/records", headers=headers).status_code == 200
    append, fetch = kept.get_finished_spans()
    assert [append.name, fetch.name] == ["append t", "fetch t"]
    for each in (append, fetch):
        assert f"{each.context.trace_id:032x}" == TRACE
        assert f"{each.parent.span_id:016x}" == SPAN
        assert each.attributes["messaging.destination.name"] == "t"


def test_flight_continues_the_trace_of_its_caller_and_a_failure_is_noted(traced: Any) -> None:
    service, kept = traced
    options = flight.FlightCallOptions(headers=[(b"traceparent", PARENT.encode())])
    with flight.connect(service.flight_url) as client:
        for topic in ("t", "none"):
            ticket = flight.Ticket(encode_question(Question("fetch", topic, 0, 0)))
            try:
                client.do_get(ticket, options).read_all()
            except flight.FlightError:
                assert topic == "none"
    good, bad = kept.get_finished_spans()
    assert f"{good.context.trace_id:032x}" == TRACE
    assert good.status.is_ok or good.status.is_unset
    assert (bad.name, bad.status.is_ok or bad.status.is_unset) == ("fetch none", False)


def test_an_append_is_linked_to_the_traces_that_its_records_carry(traced: Any) -> None:
    service, kept = traced
    carried = [("traceparent", PARENT.encode()), ("other", b"x")]
    with lamina.connect(service.flight_url) as store:
        rows = [{"value": b"v", "headers": carried}, {"value": b"w", "headers": carried}]
        store.append("t", pa.RecordBatch.from_pydict({
            "value": pa.array([b"v", b"w"]),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in row["headers"]] for row in rows], HEADERS
            ),
        }))  # fmt: skip
    with RawClient(service.kafka_address) as kafka:
        headers = [[{"key": "traceparent", "value": PARENT.encode()}]]
        kafka.ask(PRODUCE, 8, produced("t", made([b"k"], headers=headers)))
        kafka.ask(FETCH, 11, fetched("t", 0))
    ours, kafkas, fetch = kept.get_finished_spans()
    assert fetch.name == "fetch t"
    for each in (ours, kafkas):
        assert each.parent is None
        (link,) = each.links
        assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == f"{TRACE}-{SPAN}"


@pytest.mark.parametrize("header", ["", "00-0-0-01", "junk" * 100, PARENT.replace("0af", "xyz")])
def test_a_header_that_is_none_is_no_parent_and_fails_no_call(traced: Any, header: str) -> None:
    service, kept = traced
    url = f"{service.http_url}/v1/topics/t/partitions/0/records"
    assert httpx.get(url, headers={"traceparent": header}).status_code == 200
    (span,) = kept.get_finished_spans()
    assert span.parent is None


def test_nothing_is_loaded_unless_it_is_asked_for() -> None:
    code = (
        "import sys, lamina.server.service;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    nothing = tracing.NO_TRACES.span("append", "t")
    assert nothing is tracing.NO_TRACES.within({}), "one context that does nothing"


def test_without_the_extra_a_server_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(tracing.importlib, "import_module", import_module)
    with pytest.raises(InvalidRequest, match=r"pip install 'lamina\[otel\]'"):
        Service(str(tmp_path), ServerSettings(traces="otel"))
