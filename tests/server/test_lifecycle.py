"""A server's life: ready when it is, honest about its health, and gone without losing an answer."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.errors import ArchiveUnavailable, InvalidRequest, Locked, StorageFull, Unavailable
from lamina.server.health import WallClock
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.server.settings import resolve
from lamina.store import warming
from lamina.wire.kafka.record_apis import PRODUCE
from tests.server.kafka.raw_client import RawClient, made, produced
from tests.server.rig import ServerProcess, free_port, served


def test_sigterm_answers_what_was_accepted_and_checkpoints(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    acknowledged: list[int] = []
    refusals: list[BaseException] = []

    def produce() -> None:
        with lamina.connect(server.url, timeout_s=5) as client:
            try:
                while True:
                    acknowledged.append(client.append("t", b"v").base_offset)
            except BaseException as error:
                refusals.append(error)

    with server:
        with lamina.connect(server.url) as store:
            store.create_topic("t")
        threads = [threading.Thread(target=produce) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 200 and not refusals:
            threading.Event().wait(0.01)
        assert server.end(signal.SIGTERM) == 0
        for thread in threads:
            thread.join()
    assert [type(error) for error in refusals if not isinstance(error, Unavailable)] == []
    assert len(set(acknowledged)) == len(acknowledged)
    checkpoint = json.loads((tmp_path / "data/meta/checkpoint.json").read_text())
    with lamina.open(str(tmp_path / "data")) as store:
        assert store.recovery_report.of("cut") == [], "it was closed, not dropped"
        end = store.latest_offset("t")
        assert end >= max(acknowledged) + 1
        assert end - len(acknowledged) <= 8, "at most one unanswered append a producer"
    assert str(end - 1) in json.dumps(checkpoint) or str(end) in json.dumps(checkpoint)


def test_a_stop_loses_no_answer_at_any_door(tmp_path: Path) -> None:
    """Who got an offset finds its record there; who did not was told to come back, or cut off."""
    stored: dict[str, list[tuple[int, bytes]]] = {"flight": [], "http": [], "kafka": []}
    problems: list[object] = []
    with served(tmp_path / "data", kafka_port=0) as service:
        service.broker.store.create_topic("t")
        doors = {"flight": _by_flight, "http": _by_http, "kafka": _by_kafka}
        threads = [
            threading.Thread(target=append, args=(service, stored[name], problems))
            for name, append in doors.items()
        ]
        for thread in threads:
            thread.start()
        while min(map(len, stored.values())) < 5 and not problems:
            threading.Event().wait(0.005)
        service.stop()
        for thread in threads:
            thread.join(60)
    assert problems == []
    with lamina.open(str(tmp_path / "data")) as store:
        assert store.recovery_report.of("cut") == [], "it was closed, not dropped"
        kept = [value.as_py() for batch in store.scan("t", 0, 0) for value in batch["value"]]
    for answered in stored.values():
        assert len(answered) >= 5
        assert all(kept[offset] == value for offset, value in answered)


def _by_flight(service: Service, stored: list[tuple[int, bytes]], problems: list[object]) -> None:
    with lamina.connect(service.flight_url, timeout_s=2) as client:
        try:
            while True:
                value = b"flight %d" % len(stored)
                stored.append((client.append("t", value).base_offset, value))
        except Unavailable:
            return
        except BaseException as error:
            problems.append(error)


def _by_http(service: Service, stored: list[tuple[int, bytes]], problems: list[object]) -> None:
    url = f"{service.http_url}/v1/topics/t/records"
    try:
        with httpx.Client(timeout=30) as client:
            while True:
                value = f"http {len(stored)}"
                answer = client.post(url, json={"records": [{"value": value}]})
                if answer.status_code == 503:
                    assert answer.headers["retry-after"]
                    return
                offset = answer.json()["parts"]["0"]["base_offset"]
                stored.append((offset, value.encode()))
    except httpx.TransportError:
        return
    except BaseException as error:
        problems.append(error)


def _by_kafka(service: Service, stored: list[tuple[int, bytes]], problems: list[object]) -> None:
    try:
        with RawClient(service.kafka_address) as client:
            while True:
                value = b"kafka %d" % len(stored)
                answer = client.ask(PRODUCE, 8, produced("t", made([value])))
                (part,) = answer["responses"][0]["partition_responses"]
                if part["error_code"]:
                    return
                stored.append((part["base_offset"], value))
    except OSError:
        return
    except BaseException as error:
        problems.append(error)


def test_a_server_compiles_before_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(
        str(tmp_path / "data"), ServerSettings(flight_port=0, http_port=0, kafka_port=-1)
    )
    told: list[Any] = []

    def compiling() -> Iterator[tuple[int, int]]:
        for done in range(3):
            yield done, 2
            answer = httpx.get(f"{service.http_url}/ready", timeout=30)
            told.append((answer.status_code, answer.json()["compiled_percent"]))

    monkeypatch.setattr(warming, "is_warm", lambda: False)
    monkeypatch.setattr(warming, "warm", compiling)
    with caplog.at_level("INFO", "lamina.server"):
        service.start()
    try:
        assert told == [(503, 0), (503, 50), (503, 100)]
        assert "compiling kernels" in caplog.text
        assert httpx.get(f"{service.http_url}/ready").status_code == 200
    finally:
        service.stop()


@pytest.mark.parametrize("kind", [OSError, lamina.Unavailable])
def test_a_server_without_room_for_kernels_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    def fails() -> Iterator[tuple[int, int]]:
        raise kind("No space left on device")
        yield 0, 0

    monkeypatch.setattr(warming, "is_warm", lambda: False)
    monkeypatch.setattr(warming, "warm", fails)
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        assert store.append("t", b"value").base_offset == 0
    assert "No space left" in caplog.text


def test_ready_says_how_far_recovery_is(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t", partitions=5)
    service = Service(
        str(tmp_path / "data"), ServerSettings(flight_port=0, http_port=0, kafka_port=-1)
    )
    told: list[Any] = []
    noted = service._recovering

    def recovering(done: int, total: int) -> None:
        noted(done, total)
        answer = httpx.get(f"{service.http_url}/ready", timeout=30)
        told.append((answer.status_code, answer.json()))
        with (
            lamina.connect(service.flight_url, timeout_s=0.5) as store,
            pytest.raises(lamina.Unavailable, match="recovering"),
        ):
            store.topics()

    service._recovering = recovering  # type: ignore[method-assign]
    service.start()
    try:
        assert [status for status, _ in told] == [503] * 5
        assert [body["recovered_partitions"] for _, body in told] == [0, 1, 2, 3, 4]
        ready = httpx.get(f"{service.http_url}/ready")
        assert ready.status_code == 200
        assert ready.json()["recovered_partitions"] == ready.json()["partitions"] == 5
    finally:
        service.stop()


def test_health_says_when_the_disk_is_full_and_when_it_is_not_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        store.append("t", b"before")
        real = os.pwrite
        full = OSError(errno.ENOSPC, "no space")

        def pwrite(*arguments: Any) -> int:
            if is_full:
                raise full
            return real(*arguments)

        is_full = True
        monkeypatch.setattr(os, "pwrite", pwrite)
        with pytest.raises(StorageFull):
            store.append("t", b"x" * 5000)
        answer = httpx.get(f"{service.http_url}/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "degraded")
        assert "space" in answer.json()["problems"][0]
        assert store.fetch("t", 0, 0).column("value").to_pylist() == [b"before"], "reads go on"
        is_full = False
        store.append("t", b"after")
        assert httpx.get(f"{service.http_url}/health").json()["problems"] == []


def test_health_names_a_partition_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        store.create_topic("other")

        def fails(descriptor: int) -> None:
            raise OSError(errno.EIO, "I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fails)
            with pytest.raises(lamina.Closed):
                store.append("t", b"x")
        health = httpx.get(f"{service.http_url}/health").json()
        assert health["status"] == "degraded"
        assert [problem for problem in health["problems"] if "t-0" in problem or "t/0" in problem]
        assert "lamina_failed_partitions 1.0" in httpx.get(f"{service.http_url}/metrics").text
        store.append("other", b"goes on")


def test_health_names_a_group_whose_journal_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        store.append("t", [b"x", b"y"])
        group = store.group("t", "billing")
        batch = group.poll(1)
        assert health(service) == (200, [])

        def fails(descriptor: int) -> None:
            raise OSError(errno.EIO, "I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fails)
            with pytest.raises(lamina.Closed):
                group.ack(batch)
        status, (problem,) = health(service)
        assert status == 503
        assert problem.startswith("group 'billing' of t/0: a write or fsync failed")
        assert list(store.failures()) == ["group 'billing' of t/0"]
        store.append("t", b"goes on")


def health(service: Service) -> tuple[int, list[str]]:
    answer = httpx.get(f"{service.http_url}/health", timeout=30)
    body = answer.json()
    assert body["status"] == ("ok" if answer.status_code == 200 else "degraded")
    return answer.status_code, body["problems"]


def test_health_names_a_disk_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t", partitions=2)
        store.append("t", b"before", partition=0)

        def pwrite(*_: object) -> int:
            raise OSError(errno.EROFS, "Read-only file system")

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", pwrite)
            with pytest.raises(lamina.Closed, match="Read-only"):
                store.append("t", b"x", partition=0)
            status, (problem,) = health(service)
            assert status == 503
            assert "t/0" in problem
            assert "Read-only" in problem
            assert store.fetch("t", 0, 0).column("value").to_pylist() == [b"before"]
            assert list(store.failures()) == [problem.split(":")[0]]
        store.append("t", b"other", partition=1)
    with served(tmp_path / "data") as again, lamina.connect(again.flight_url) as store:
        assert health(again) == (200, [])
        assert store.append("t", b"after", partition=0).base_offset == 1


def test_health_names_an_object_store_that_is_down_until_it_is_not(tmp_path: Path) -> None:
    shelf = tmp_path / "archive"
    shelf.mkdir()
    with (
        served(tmp_path / "data", archive=str(shelf)) as service,
        lamina.connect(service.flight_url) as store,
    ):
        settings = {"remote.storage.enable": True, "segment.bytes": 1024}
        store.create_topic("t", config=settings)
        store.archive()
        assert health(service) == (200, [])
        kept = tmp_path / "kept"
        shelf.rename(kept)
        shelf.write_text("no directory")
        for number in range(6):
            store.append("t", [b"%d" % number * 300])
        with pytest.raises(ArchiveUnavailable, match="t/0"):
            store.archive()
        status, (problem,) = health(service)
        assert status == 503
        assert problem.startswith("the archive of t/0: ")
        assert store.tier_status()[0].last_error in problem
        assert store.append("t", b"goes on").base_offset == 6
        assert store.fetch("t", 0, 0).num_rows > 0
        shelf.unlink()
        kept.rename(shelf)
        store.archive()
        assert health(service) == (200, [])
        assert store.tier_status()[0].archived_offset > 0


def test_health_says_by_how_much_the_clock_jumped(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        wall_s, steady_s = [1000.0], [5.0]
        service.broker.condition.clock = WallClock(lambda: wall_s[0], lambda: steady_s[0])
        wall_s[0], steady_s[0] = 8000.0, 7005.0
        assert health(service) == (200, []), "time went by"
        for jump_s, sign in ((-3600.0, "-3600 s"), (86_400.0 * 365, "+31536000 s")):
            wall_s[0] = 8000.0 + jump_s
            status, (problem,) = health(service)
            assert (status, sign in problem) == (503, True)
            assert store.append("t", b"v").durability == "fsynced"
        wall_s[0] = 8000.0 + 59
        assert health(service) == (200, []), "it is right again"


def test_a_directory_has_one_server(tmp_path: Path) -> None:
    with served(tmp_path / "data"):
        second = Service(
            str(tmp_path / "data"), ServerSettings(flight_port=0, http_port=0, kafka_port=-1)
        )
        with pytest.raises(Locked):
            second.start()


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        port = int(service.http_url.rsplit(":", 1)[1])
        with pytest.raises(Unavailable, match="cannot listen"):
            Service(str(tmp_path / "other"), ServerSettings(http_port=port)).start()


def test_a_client_waits_for_a_server_that_starts_later(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with lamina.connect(server.url, timeout_s=90) as client:
        starting = threading.Timer(0.5, server.start)
        starting.start()
        assert client.topics() == []
        starting.join()
        server.__exit__()


def test_a_server_that_does_not_answer_is_not_waited_for_beyond_the_timeout(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert server.process is not None
        with (
            lamina.connect(server.url, timeout_s=60) as client,
            lamina.connect(server.url, timeout_s=1) as hasty,
        ):
            client.create_topic("t")
            client.append("t", b"v")
            server.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)  # till then a thread may answer
            try:
                for call in (
                    lambda: client.append("t", b"v", timeout_s=1),
                    hasty.topics,
                    lambda: hasty.fetch("t", 0, 0),
                ):
                    with pytest.raises(Unavailable):
                        call()
            finally:
                server.process.send_signal(signal.SIGCONT)
            client.append("t", b"w", timeout_s=60)


# ---------------------------------------------------------------- settings


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lamina.toml"
    path.write_text('[server]\nhost = "::1"\nflight.port = 1\n"http.port" = 2\nmax.wait.ms = 3\n')
    found = resolve(
        str(path),
        {"LAMINA_HTTP_PORT": "22", "LAMINA_MAX_WAIT_MS": "33", "LAMINA_OTHER": "x"},
        {"max.wait.ms": "333"},
    )
    settings = found.settings
    assert (settings.host, settings.flight_port, settings.http_port) == ("::1", 1, 22)
    assert settings.wait_ms == 333
    assert found.sources == {
        "host": f"file {path}",
        "flight.port": f"file {path}",
        "http.port": "environment",
        "max.wait.ms": "flag",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\nflihgt.port = 1", "did you mean 'flight.port'"),
        ("[server]\nflight.port = 99999", "from 0 to 65535"),
        ("[sever]\n", "only \\[server\\]"),
        ("not toml", "is not TOML"),
        ("[server]\nhost = 7", "must be text"),
    ],
)
def test_a_wrong_settings_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "lamina.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=problem):
        resolve(str(path), {}, {})
    with pytest.raises(InvalidRequest, match="no settings file"):
        resolve(str(tmp_path / "none.toml"), {}, {})
    assert free_port() > 0


def test_a_session_that_the_server_forgot_goes_on_as_somebody_new(tmp_path: Path) -> None:
    """What was only written may be lost with the machine; its producer is then out of sequence."""
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as client:
        client.create_topic("t")
        client.append("t", b"0")
        (session,) = client._sessions._idle
        session.sequences["t", 0] += 7
        assert client.append("t", b"1").base_offset == 1
        assert client.append("t", b"2").base_offset == 2
        (renewed,) = client._sessions._idle
        assert renewed.producer_id != session.producer_id
        assert client.fetch("t", 0, 0).column("value").to_pylist() == [b"0", b"1", b"2"]


def test_a_server_that_was_stopped_is_let_go(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        held = weakref.ref(service)
    del service
    gc.collect()
    assert held() is None
