"""A proxy in front of an S3 server on loopback that spoils chosen answers.

What may happen to a request: the server never sees it (`500`, `503`, `403`, `404`, `412`), or does
what was asked and the answer is lost (`reset`), cut (`truncated`), shortened as if it were whole
(`short`), changed (`flipped`) or late (`slow`). Everything else is passed on byte for byte.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("500", "503", "412", "404", "reset", "truncated", "short", "flipped", "slow")
SLOW_S = 0.3

Plan = Callable[[str, str], str | None]


class FaultProxy:
    """Listens on a port of its own; `plan(method, path)` names the fault of each request."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.plan: Plan = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def handle_one(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = _body(request)
        method, path = request.command, request.path
        self.requests.append((method, path))
        fault = self.plan(method, path)
        if fault is not None and fault.isdecimal():
            answer = f"<Error><Code>Test{fault}</Code><Message>test</Message></Error>".encode()
            _answer(request, int(fault), {}, answer)
            return
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        connection.request(method, path, body, dict(request.headers.items()))
        found = connection.getresponse()
        data = found.read()
        headers = {name.lower(): value for name, value in found.getheaders()}
        connection.close()
        if fault == "slow":
            time.sleep(SLOW_S)
        if fault == "reset":
            request.close_connection = True
            return
        if fault == "flipped" and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if fault == "short":
            data = data[: len(data) // 2]
        cut = len(data) // 2 if fault == "truncated" else None
        _answer(request, found.status, headers, data, cut)


def _body(request: BaseHTTPRequestHandler) -> bytes | None:
    length = request.headers.get("Content-Length")
    return request.rfile.read(int(length)) if length else None


def _answer(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    data: bytes,
    cut: int | None = None,
) -> None:
    length = str(len(data))
    if request.command == "HEAD":
        length = headers.get("content-length", "0")
    request.send_response_only(status)
    for name, value in headers.items():
        if name not in ("content-length", "transfer-encoding", "connection"):
            request.send_header(name, value)
    request.send_header("Content-Length", length)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data if cut is None else data[:cut])
    if cut is not None:
        request.wfile.flush()
        request.close_connection = True
