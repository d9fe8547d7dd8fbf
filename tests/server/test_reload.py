"""Keys, certificates and settings are read again while a server runs: all of them or none."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.errors import Busy, CorruptData, InvalidRequest, NotAllowed
from lamina.server import auth
from lamina.server.auth import ANYBODY
from lamina.server.log_lines import JsonLines
from lamina.server.reloading import NEEDS_RESTART, SWITCHES, in_force
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.storage import locks, paths
from lamina.wire.kafka.connection_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.topic_apis import METADATA
from lamina.wire.messages import Question
from tests.server.certificates import write_certificate
from tests.server.kafka.raw_client import RawClient
from tests.server.rig import ServerProcess, served

PORTS = {"flight_port": 0, "http_port": 0, "kafka_port": -1}


@contextmanager
def reloadable(data: Path, wanted: dict[str, Any]) -> Iterator[Service]:
    """A server whose settings are what `wanted` holds when it is asked to reload."""
    service = Service(
        str(data),
        ServerSettings(**(PORTS | wanted)),
        lambda: ServerSettings(**(PORTS | wanted)),
    )
    service.start()
    try:
        yield service
    finally:
        service.stop()


# ---------------------------------------------------------------- settings


def test_a_setting_of_a_running_server_is_changed_and_others_say_that_they_need_a_restart(
    tmp_path: Path,
) -> None:
    wanted: dict[str, Any] = {"request_bytes": 1 << 20}
    with reloadable(tmp_path / "data", wanted) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t")
            wanted |= {"request_bytes": 2048, "connections": 7, "host": "::1", "rate_requests": 99}
            report = service.reload()
            assert report.changed == {"max.request.bytes": 2048, "rate.requests": 99}
            assert report.needs_restart == [
                "host changed: needs restart",
                "max.connections changed: needs restart",
            ]
            with pytest.raises(InvalidRequest, match=r"max\.request\.bytes"):
                store.append("t", b"x" * 100_000)
        assert service.settings.connections == ServerSettings().connections
        assert service.reload().changed == {}
        assert service.reload().needs_restart == report.needs_restart, "until it is restarted"


def test_limits_that_were_reloaded_hold_for_the_next_call(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {}
    with reloadable(tmp_path / "data", wanted) as service:
        wanted |= {"inflight_bytes": 1 << 20, "waiting": 1, "rate_requests": 2, "idle_ms": 200}
        service.reload()
        broker = service.broker
        assert (broker.inflight.limit, broker.waiting.limit) == (1 << 20, 1)
        with pytest.raises(Busy, match="more than 2 calls a second"):
            [broker.call(ANYBODY, "topics", {}) for _ in range(4000)]
        wanted["rate_requests"] = -1
        service.reload()
        with lamina.connect(service.flight_url) as store:
            for _ in range(9):
                assert store.topics() == []


def test_each_setting_is_reloaded_or_says_that_it_needs_a_restart() -> None:
    """A setting that is new has to choose: this fails for one that nobody thought of."""
    before = ServerSettings()
    for row in ServerSettings.explained():
        key = row["key"]
        others = {"host": "::1", "log.format": "json", "log.level": "debug", "traces": "otel"}
        others |= {"kafka.auto.create": "false", "archive": "s3://b", "kafka.advertised": "h"}
        value = others.get(key, "x" if row["default"] == "" else None)
        wanted = before.updated({key: row["default"] + 1 if value is None else value})
        settings, sentences = in_force(before, wanted)
        if key in NEEDS_RESTART or key in SWITCHES:
            assert sentences == [f"{key} changed: needs restart"]
            assert settings == before
        else:
            assert (sentences, settings) == ([], wanted)


def test_settings_that_are_wrong_leave_everything_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted: dict[str, Any] = {}
    with reloadable(tmp_path / "data", wanted) as service:
        before = service.settings
        wanted |= {"request_bytes": 4096, "wait_ms": -5}
        with pytest.raises(InvalidRequest, match=r"max\.wait\.ms"):
            service.reload()
        assert service.settings is before
        assert "everything stays as it was" in caplog.text
        page = httpx.get(f"{service.http_url}/metrics").text
        assert 'lamina_reloads_total{outcome="refused"} 1.0' in page


# ---------------------------------------------------------------- keys


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[Service, str, dict[str, tuple[str, str]]]]:
    path = str(tmp_path / "keys.json")
    keys = {}
    for name, scope in (("admin", "admin"), ("writer", "write")):
        made, text = auth.create(path, scope=scope)
        keys[name] = made.id, text
    with served(tmp_path / "data", keys_file=path, kafka_port=0) as service:
        with lamina.connect(service.flight_url, api_key=keys["admin"][1]) as store:
            store.create_topic("t")
        yield service, path, keys


def test_a_key_that_was_made_is_known_after_a_reload(keyed: Any) -> None:
    service, path, _ = keyed
    made, text = auth.create(path, scope="read")
    with lamina.connect(service.flight_url, api_key=text) as store:
        with pytest.raises(NotAllowed):
            store.topics()
        assert service.reload().keys_added == [made.id]
        assert store.topics() == ["t"]


def test_a_revoked_key_ends_its_streams_calls_and_sessions(keyed: Any) -> None:
    service, path, keys = keyed
    identity, text = keys["writer"]
    headers = {"authorization": f"Bearer {text}"}
    watch = f"{service.http_url}/v1/topics/t/partitions/0/watch"
    with (
        lamina.connect(service.flight_url, api_key=text) as store,
        RawClient(service.kafka_address) as kafka,
        httpx.stream("GET", watch, headers=headers, timeout=30) as events,
    ):
        store.append("t", b"before")
        kafka.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        kafka.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0any\0" + text.encode()})
        auth.delete(path, identity)
        assert service.reload().keys_revoked == [identity]
        with pytest.raises(NotAllowed, match="revoked"):
            store.append("t", b"on the stream that is open")
        with pytest.raises(NotAllowed):
            store.topics()
        assert kafka.is_closed(), "without having asked for anything"
        assert "was revoked" in "".join(events.iter_text()), "the watch has ended"
        assert httpx.get(watch, headers=headers).status_code == 401
    with lamina.connect(service.flight_url, api_key=keys["admin"][1]) as store:
        assert store.latest_offset("t") == 1


def test_a_long_poll_ends_when_its_key_is_revoked(keyed: Any) -> None:
    service, path, keys = keyed
    identity, text = keys["writer"]
    url = f"{service.http_url}/v1/topics/t/partitions/0/records?wait_ms=30000"
    answers: list[httpx.Response] = []

    def poll() -> None:
        headers = {"authorization": f"Bearer {text}"}
        answers.append(httpx.get(url, headers=headers, timeout=60))

    thread = threading.Thread(target=poll)
    thread.start()
    while not service.broker.waiting.used:
        threading.Event().wait(0.005)
    auth.delete(path, identity)
    service.reload()
    thread.join(20)
    assert [each.status_code for each in answers] == [403], "long before its wait is over"


def test_a_scan_ends_when_its_key_is_revoked(keyed: Any) -> None:
    service, path, keys = keyed
    identity, text = keys["writer"]
    caller = service.broker.caller(text)
    with lamina.connect(service.flight_url, api_key=text) as store:
        for number in range(3):
            store.append("t", [b"%d" % number * 1000] * 50)
    question = Question("scan", "t", 0, 0, max_records=10)
    _, batches = service.broker.scan(caller, question)
    next(batches)
    auth.delete(path, identity)
    service.reload()
    with pytest.raises(NotAllowed, match="revoked"):
        next(batches)


def test_a_key_whose_scope_was_narrowed_may_less_with_its_next_call(keyed: Any) -> None:
    service, path, keys = keyed
    identity, text = keys["writer"]
    with lamina.connect(service.flight_url, api_key=text) as store:
        store.append("t", b"before")
        document = json.loads(Path(path).read_text())
        for each in document["keys"]:
            if each["id"] == identity:
                each["scope"] = "read"
        Path(path).write_text(json.dumps(document))
        assert service.reload().keys_changed == [identity]
        with pytest.raises(NotAllowed, match="needs scope write"):
            store.append("t", b"after")
        assert store.latest_offset("t") == 1


def test_a_kafka_session_of_a_key_that_did_not_change_goes_on(keyed: Any) -> None:
    service, _, keys = keyed
    with RawClient(service.kafka_address) as kafka:
        kafka.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        kafka.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0any\0" + keys["writer"][1].encode()})
        assert service.reload().sentence() == "nothing has changed"
        assert kafka.ask(METADATA, 8, {"topics": [{"name": "t"}]})["topics"][0]["name"] == "t"


@pytest.mark.parametrize("text", ["", "no JSON", '{"keys": [{"id": 7}]}', '{"version": 1}'])
def test_a_bad_key_file_is_refused_and_the_old_keys_stay(keyed: Any, text: str) -> None:
    service, path, keys = keyed
    Path(path).write_text(text)
    with pytest.raises(CorruptData, match="not a key file"):
        service.reload()
    with lamina.connect(service.flight_url, api_key=keys["writer"][1]) as store:
        assert store.topics() == ["t"]
    os.unlink(path)
    with pytest.raises(InvalidRequest, match="there is no key file"):
        service.reload()


def test_a_reload_over_http_needs_scope_admin_and_says_what_changed(keyed: Any) -> None:
    service, path, keys = keyed
    url = f"{service.http_url}/v1/reload"
    assert httpx.post(url).status_code == 401
    writer = httpx.post(url, headers={"authorization": f"Bearer {keys['writer'][1]}"})
    assert writer.status_code == 403
    made, _ = auth.create(path, scope="read")
    headers = {"authorization": f"Bearer {keys['admin'][1]}"}
    answer = httpx.post(url, headers=headers)
    assert answer.status_code == 200
    assert answer.json()["result"]["keys_added"] == [made.id]
    Path(path).write_text("torn")
    assert httpx.post(url, headers=headers).status_code == 500
    assert httpx.post(url, headers=headers, content=b'{"x": 1}').status_code == 400


# ---------------------------------------------------------------- certificates


def shown_by(port: int) -> str:
    """The certificate that a port shows in a new handshake."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_all_doors_show_the_new_certificate_and_open_streams_go_on(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with reloadable(tmp_path / "data", tls | {"kafka_port": 0}) as service:
        doors = (service.flight_url, service.http_url, str(service.kafka_address))
        ports = [int(each.rsplit(":", 1)[1]) for each in doors]
        first = certificate.read_bytes()
        with lamina.connect(service.flight_url, tls_root=first) as old:
            old.create_topic("t")
            old.append("t", b"0")
            assert [shown_by(port) for port in ports] == [first.decode()] * 3
            assert service.reload().certificate == "unchanged"
            write_certificate(tmp_path, "renewed")
            assert service.reload().certificate == "renewed"
            second = certificate.read_text()
            assert [shown_by(port) for port in ports] == [second] * 3
            assert old.append("t", b"1").base_offset == 1, "on the stream that was open"
            with lamina.connect(service.flight_url, tls_root=second.encode()) as new:
                assert new.append("t", b"2").base_offset == 2


def test_a_certificate_that_cannot_be_used_is_refused_by_all_doors(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    good, good_key = certificate.read_bytes(), key.read_bytes()
    wanted = {"tls_certificate": str(certificate), "tls_key": str(key), "wait_ms": 1000}
    with reloadable(tmp_path / "data", wanted | {"kafka_port": 0}) as service:
        doors = (service.flight_url, service.http_url, str(service.kafka_address))
        other = tmp_path / "other"
        other.mkdir()
        write_certificate(other)
        for chain, secret in (
            (b"junk", good_key),
            (good, b"junk"),
            ((other / "cert.pem").read_bytes(), good_key),
            (b"", b""),
        ):
            certificate.write_bytes(chain)
            key.write_bytes(secret)
            with pytest.raises(InvalidRequest, match="cannot be used"):
                service.reload()
            assert [shown_by(int(each.rsplit(":", 1)[1])) for each in doors] == [good.decode()] * 3
        certificate.unlink()
        with pytest.raises(InvalidRequest, match="cannot be used"):
            service.reload()


def test_one_bad_file_keeps_the_others_from_being_used(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    path = str(tmp_path / "keys.json")
    first, admin = auth.create(path, scope="admin")
    wanted = {"tls_certificate": str(certificate), "tls_key": str(key), "keys_file": path}
    with reloadable(tmp_path / "data", wanted) as service:
        before = service.settings
        auth.create(path, scope="read")
        auth.delete(path, first.id)
        wanted["wait_ms"] = 1234
        good = certificate.read_bytes()
        certificate.write_bytes(b"junk")
        with pytest.raises(InvalidRequest, match="cannot be used"):
            service.reload()
        assert service.settings is before
        assert service.broker.caller(admin).name == first.id, "it is not revoked yet"
        certificate.write_bytes(good)
        report = service.reload()
        assert (report.keys_revoked, report.changed) == ([first.id], {"max.wait.ms": 1234})
        with pytest.raises(NotAllowed):
            service.broker.caller(admin)


def test_tls_is_not_switched_on_or_off_by_a_reload(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    wanted: dict[str, Any] = {}
    with reloadable(tmp_path / "data", wanted) as service:
        wanted |= {"tls_certificate": str(certificate), "tls_key": str(key)}
        assert service.reload().needs_restart == [
            "tls.certificate changed: needs restart",
            "tls.key changed: needs restart",
        ]
        assert httpx.get(f"{service.http_url}/ready").status_code == 200


# ---------------------------------------------------------------- signals


def await_line(server: ServerProcess, text: str) -> str:
    """Waits for a line of the log."""
    deadline = threading.Event()
    timer = threading.Timer(60, deadline.set)
    timer.start()
    try:
        while not deadline.is_set():
            found = [line for line in server.log.read_text().splitlines() if text in line]
            if found:
                return found[-1]
            deadline.wait(0.02)
    finally:
        timer.cancel()
    raise AssertionError(f"no {text!r} in {server.log.read_text()[-2000:]}")


def test_sighup_reloads_and_sigterm_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "lamina.toml"
    config.write_text('[server]\nlog.format = "json"\nmax.wait.ms = 2000\n')
    monkeypatch.setenv("LAMINA_CONFIG", str(config))
    with ServerProcess(tmp_path / "data") as server:
        assert server.process is not None
        config.write_text('[server]\nlog.format = "json"\nmax.wait.ms = 1000\nkafka.port = 1\n')
        server.process.send_signal(signal.SIGHUP)
        line = json.loads(await_line(server, '"reload"'))
        assert line["changed"] == {"max.wait.ms": 1000}
        assert line["outcome"] == "ok"
        config.write_text("torn [")
        server.process.send_signal(signal.SIGHUP)
        assert "is not TOML" in json.loads(await_line(server, '"refused"'))["problem"]
        assert httpx.get(f"{server.http_url}/ready").status_code == 200
        with lamina.connect(server.url) as store:
            store.create_topic("t")
            assert store.append("t", b"v").base_offset == 0
        assert server.end(signal.SIGTERM) == 0
    events = [json.loads(line).get("event") for line in server.log.read_text().splitlines()]
    assert [each for each in events if each not in (None, "reload")] == [
        *("starting", "recovered", "serving", "draining", "stopped"),
    ]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers of signals back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_second_sigterm_waits_for_no_call_and_loses_no_append(
    tmp_path: Path, handlers: None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(**PORTS, drain_ms=3_600_000)
    service = Service(str(tmp_path / "data"), settings)
    service.start()
    with lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        store.append("t", b"kept")
    service.broker.work.take()  # a call that does not end

    def kill_twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert service.broker.stopping.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Timer(0.1, kill_twice)
    killer.start()
    service.run()
    killer.join()
    assert "still at work" in caplog.text
    with lamina.open(str(tmp_path / "data")) as again:
        assert again.fetch("t", 0, 0)["value"].to_pylist() == [b"kept"]


def test_a_hangup_before_the_server_serves_is_a_reload_when_it_does(
    tmp_path: Path, handlers: None
) -> None:
    read: list[int] = []

    def settle() -> ServerSettings:
        read.append(1)
        return ServerSettings(**PORTS)

    service = Service(str(tmp_path / "data"), ServerSettings(**PORTS), settle)
    service.catch_reloads()
    os.kill(os.getpid(), signal.SIGHUP)
    service.start()
    try:
        assert read == []
        service._look_after()
        service._look_after()
        assert read == [1]
    finally:
        service.stop()


def test_a_server_drains_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """SIGHUP of a terminal that is gone is no reload: nobody would ever end that process."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "lamina.cli.main", "serve", "--data", str(tmp_path / "data")]
    command += ["--set=flight.port=0", "--set=http.port=0", "--set=kafka.port=-1"]
    log = (tmp_path / "log").open("w")
    with log, os.fdopen(leader, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            *(["setsid", "--ctty", "--wait", *command],),
            stdin=follower,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        os.close(follower)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready ")
        held = locks.holder_of(str(tmp_path / "data" / paths.LOCK))
        terminal.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.stdout.close()
            if process.returncode is None and held is not None:
                os.kill(held, signal.SIGKILL)
                process.wait()
    assert "stopped" in (tmp_path / "log").read_text()


# ---------------------------------------------------------------- the log of it


def test_a_reload_is_logged_with_its_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted: dict[str, Any] = {}
    with caplog.at_level(logging.INFO), reloadable(tmp_path / "data", wanted) as service:
        wanted["drain_ms"] = 1
        service.reload()
    (line,) = [each for each in caplog.records if "reloaded" in each.getMessage()]
    assert json.loads(JsonLines().format(line))["changed"] == {"drain.ms": 1}
