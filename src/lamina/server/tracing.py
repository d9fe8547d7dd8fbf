"""Spans of appends and reads by OpenTelemetry, where somebody asks for them.

With the setting `traces=otel` and the extra `lamina[otel]`, a call that comes with W3C's header
`traceparent` (HTTP, Flight) continues that trace, and an append has links to the traces that its
records carry in their own headers, as Kafka's producers send them. Where spans go is up to the
SDK's own settings (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, …).

Rules.
1. Nothing of OpenTelemetry is imported unless it is asked for; without it a span is one call that
   returns a context doing nothing.
2. A trace never fails a call: a header that is none is no parent.
3. Of a batch, only the first `LINKS_MAX` headers are looked at.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from lamina.errors import InvalidRequest

NAME = "lamina"
LINKS_MAX = 16
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class Tracing:
    """Makes no spans: what every server has until it is told otherwise."""

    is_on = False

    def within(self, headers: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
        """Continues the trace of headers while the context lasts."""
        del headers
        return _NOTHING

    def span(
        self, name: str, topic: str, records: Any = None
    ) -> contextlib.AbstractContextManager[None]:
        """Surrounds a call; an error that leaves it is noted."""
        del name, topic, records
        return _NOTHING

    def close(self) -> None:
        """Sends what was not sent yet."""


NO_TRACES = Tracing()


class OtelTracing(Tracing):
    """Makes spans with a provider: the one given, the global one, or a new one that exports."""

    is_on = True

    def __init__(self, provider: Any = None) -> None:
        try:
            self._trace = importlib.import_module("opentelemetry.trace")
            carried = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
            self._context = importlib.import_module("opentelemetry.context")
            self._own = provider or _exporting(self._trace)
        except ImportError as error:
            raise InvalidRequest(
                f"traces=otel needs OpenTelemetry: pip install 'lamina[otel]' ({error})"
            ) from error
        self._carried = carried.TraceContextTextMapPropagator()
        self._tracer = self._own.get_tracer(NAME)

    @contextlib.contextmanager
    def within(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Continues the trace of headers while the context lasts."""
        if TRACEPARENT not in headers:
            yield
            return
        carrier = {k: headers[k] for k in (TRACEPARENT, TRACESTATE) if k in headers}
        token = self._context.attach(self._carried.extract(carrier))
        try:
            yield
        finally:
            self._context.detach(token)

    @contextlib.contextmanager
    def span(self, name: str, topic: str, records: Any = None) -> Iterator[None]:
        """Surrounds a call; an error that leaves it is noted."""
        attributes = {
            "messaging.system": NAME,
            "messaging.destination.name": topic,
            "messaging.operation.name": name,
        }
        links = [self._trace.Link(each) for each in self._traces_in(records)]
        kind = self._trace.SpanKind.SERVER
        with self._tracer.start_as_current_span(
            f"{name} {topic}", kind=kind, attributes=attributes, links=links
        ):
            yield

    def _traces_in(self, records: Any) -> Iterator[Any]:
        """Yields the traces that records carry, each once."""
        found: set[str] = set()
        for text in _carried_by(records):
            if text not in found:
                found.add(text)
                context = self._carried.extract({TRACEPARENT: text})
                linked = self._trace.get_current_span(context).get_span_context()
                if linked.is_valid:
                    yield linked

    def close(self) -> None:
        """Sends what was not sent yet."""
        if hasattr(self._own, "force_flush"):
            self._own.force_flush(5000)


def _exporting(trace: Any) -> Any:
    """Returns the global provider, or one that exports by OTLP where the program has set none."""
    known = trace.get_tracer_provider()
    if type(known).__name__ != "ProxyTracerProvider":
        return known
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    made = sdk.TracerProvider()
    made.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return made


def _carried_by(records: Any) -> list[str]:
    """Returns the `traceparent` headers among the first records of a batch."""
    if not isinstance(records, pa.RecordBatch) or "headers" not in records.schema.names:
        return []
    rows = records.column("headers").slice(0, LINKS_MAX).to_pylist()
    return [
        (each["value"] or b"").decode("latin-1")
        for row in rows
        for each in row or ()
        if each["key"] == TRACEPARENT
    ]
