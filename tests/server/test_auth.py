"""Keys: what they open, what they do not, and that nobody learns them."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.client.remote_group import RemoteGroup
from lamina.errors import InvalidRequest, NotAllowed
from lamina.server import auth
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("keyed")
    path = str(folder / "keys.json")
    keys = {
        name: auth.create(path, scope=scope, prefix=prefix)[1]
        for name, scope, prefix in (
            ("reader", "read", ""),
            ("writer", "write", ""),
            ("admin", "admin", ""),
            ("orders", "admin", "orders."),
        )
    }
    with served(folder / "data", keys_file=path) as service:
        with lamina.connect(service.flight_url, api_key=keys["admin"]) as store:
            store.create_topic("t")
            store.create_topic("orders.eu")
            store.create_topic("w", format="wal")
            store.group("t", "g")
            store.group("t", "spare")
            store.group("orders.eu", "mine")
        yield service, keys


def _group(store: Any) -> RemoteGroup:
    """A group without the call that makes it, which has a scope of its own."""
    return RemoteGroup(store._connection, "t", "g", "keratin")


CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "topics": ("read", lambda s: s.topics()),
    "describe_topic": ("read", lambda s: s.describe_topic("t")),
    "fetch": ("read", lambda s: s.fetch("t", 0, 0)),
    "scan": ("read", lambda s: list(s.scan("t", start=0))),
    "append": ("write", lambda s: s.append("t", b"v", partition=0)),
    "create_topic": ("admin", lambda s: s.create_topic("new")),
    "alter_topic": ("admin", lambda s: s.alter_topic("t", {})),
    "add_partitions": ("admin", lambda s: s.add_partitions("new", 2)),
    "delete_topic": ("admin", lambda s: s.delete_topic("new")),
    "trim": ("admin", lambda s: s.trim("t", 0, 0)),
    "delete_records": ("admin", lambda s: s.delete_records("t", 0, 0)),
    "roll": ("admin", lambda s: s.roll("t")),
    "flush": ("admin", lambda s: s.flush()),
    "delete": ("admin", lambda s: s.delete("w", before=1)),
    "diff": ("read", lambda s: s.diff("t", 0, 0)),
    "groups": ("read", lambda s: s.groups()),
    "describe_group": ("read", lambda s: s.describe_group("t", "g")),
    "tier_status": ("read", lambda s: s.tier_status()),
    "failures": ("read", lambda s: s.failures()),
    "producer_position": ("read", lambda s: s.producer_position("t", 0, 1)),
    "format_of": ("read", lambda s: s.format_of("t")),
    "group": ("write", lambda s: s.group("t", "g")),
    "group.poll": ("write", lambda s: _group(s).poll(1, 1)),
    "group.ack": ("write", lambda s: _group(s).ack([])),
    "group.release": ("write", lambda s: _group(s).release([])),
    "group.extend": ("write", lambda s: _group(s).extend([])),
    "group.reject": ("write", lambda s: _group(s).reject([])),
    "group.commit": ("write", lambda s: _group(s).commit(0)),
    "group.committed": ("read", lambda s: _group(s).committed()),
    "group.lag": ("read", lambda s: _group(s).lag()),
    "group.skipped": ("read", lambda s: _group(s).skipped),
    "reset_group": ("admin", lambda s: s.reset_group("t", "g", to=0)),
    "delete_group": ("admin", lambda s: s.delete_group("t", "spare")),
}
LEVELS = ["read", "write", "admin"]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("who", ["reader", "writer", "admin"])
def test_a_scope_opens_what_it_says(
    keyed: tuple[Service, dict[str, str]], who: str, name: str
) -> None:
    service, keys = keyed
    scope = {"reader": "read", "writer": "write", "admin": "admin"}[who]
    needed, call = CALLS[name]
    assert name not in OPERATIONS or OPERATIONS[name].scope == needed
    with lamina.connect(service.flight_url, api_key=keys[who], timeout_s=120) as store:
        if LEVELS.index(scope) >= LEVELS.index(needed):
            call(store)
        else:
            with pytest.raises(NotAllowed, match=f"needs scope {needed}"):
                call(store)


def test_a_prefix_hides_all_other_topics(keyed: tuple[Service, dict[str, str]]) -> None:
    service, keys = keyed
    with lamina.connect(service.flight_url, api_key=keys["orders"], timeout_s=120) as store:
        assert store.topics() == ["orders.eu"]
        assert store.groups() == [("orders.eu", "mine")]
        assert store.tier_status() == []
        assert store.failures() == {}
        store.append("orders.eu", b"v", partition=0)
        for call in (
            lambda: store.append("t", b"v", partition=0),
            lambda: store.fetch("t", 0, 0),
            lambda: list(store.scan("t", start=0)),
            lambda: store.describe_topic("t"),
            lambda: store.create_topic("other"),
            store.flush,
            store.archive,
            lambda: store.diff("t", 0, 0),
            lambda: store.delete("w", before=1),
            lambda: store.groups("t"),
            lambda: store.group("t", "g"),
            lambda: store.describe_group("t", "g"),
            lambda: store.reset_group("t", "g", to=0),
            lambda: store.delete_group("t", "g"),
            *(
                lambda name=name: getattr(_group(store), name)(0)
                for name in ("poll", "ack", "release", "extend", "reject", "commit", "committed")
            ),
            lambda: _group(store).lag(),
            lambda: _group(store).skipped,
        ):
            with pytest.raises(NotAllowed):
                call()


@pytest.mark.parametrize("key", [None, "", "x", "lamina_0123456789abcdef_" + "a" * 43, "ü", "a b"])
def test_a_wrong_key_opens_nothing(keyed: tuple[Service, dict[str, str]], key: str | None) -> None:
    service, _ = keyed
    headers = {} if not key or not key.isascii() else {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=service.http_url, headers=headers) as client:
        for operation in OPERATIONS.values():
            path = operation.path.format(name="t", topic="t", partition=0, group="g", producer_id=1)
            answer = client.request(operation.verb, path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/metrics").status_code == 401
    assert httpx.get(f"{service.http_url}/health").status_code == 200
    if key is None or key.isascii():
        with lamina.connect(service.flight_url, api_key=key or "", timeout_s=120) as store:
            for name, (_, call) in CALLS.items():
                with pytest.raises(NotAllowed):
                    call(store)
                assert name


def test_a_key_with_one_changed_letter_opens_nothing(
    keyed: tuple[Service, dict[str, str]],
) -> None:
    service, keys = keyed
    key = keys["admin"]
    changed = key[:-1] + ("a" if key[-1] != "a" else "b")
    with (
        lamina.connect(service.flight_url, api_key=changed, timeout_s=120) as store,
        pytest.raises(NotAllowed, match="not known"),
    ):
        store.topics()


def test_scopes_hold_over_http_too(keyed: tuple[Service, dict[str, str]]) -> None:
    service, keys = keyed
    body = {"records": [{"value": "v"}]}
    statuses = {
        who: httpx.post(
            f"{service.http_url}/v1/topics/t/records",
            json=body,
            headers={"authorization": f"Bearer {keys[who]}"},
        ).status_code
        for who in keys
    }
    assert statuses == {"reader": 403, "writer": 200, "admin": 200, "orders": 403}


def test_keys_are_kept_hashed_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    key, text = auth.create(str(path), scope="read")
    secret = text.rsplit("_", 1)[1] if text.count("_") == 2 else text[24:]
    assert secret not in path.read_text()
    assert key.id in path.read_text()
    caplog.set_level(logging.DEBUG)
    with served(tmp_path / "data", keys_file=str(path)) as service:
        for presented in (text, text[:-1] + "?"):
            with lamina.connect(service.flight_url, api_key=presented, timeout_s=5) as store:
                with pytest.raises(NotAllowed) as caught:
                    store.create_topic("x")
                assert secret[:-1] not in str(caught.value)
            httpx.get(
                f"{service.http_url}/v1/topics", headers={"authorization": f"Bearer {presented}"}
            )
    assert "refused" in caplog.text
    assert secret[:-1] not in caplog.text
    assert key.sha256 not in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_nobody_listens_beyond_loopback_without_keys(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidRequest, match="keys"):
        Service(str(tmp_path / "data"), ServerSettings(host=host))
    assert not (tmp_path / "data").exists()


def test_with_keys_a_server_listens_everywhere(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    _, key = auth.create(path, scope="admin")
    with served(tmp_path / "data", keys_file=path, host="0.0.0.0") as service:
        url = service.flight_url.replace("0.0.0.0", "127.0.0.1")
        with lamina.connect(url, api_key=key) as store:
            assert store.topics() == []


def test_a_damaged_key_file_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for text in ("", "{}", '{"keys": 7}', '{"keys": [{"id": "x"}]}', "\0"):
        path.write_text(text)
        with pytest.raises(lamina.CorruptData):
            Service(str(tmp_path / "data"), ServerSettings(keys_file=str(path)))
    path.unlink()
    with pytest.raises(InvalidRequest, match="no key file"):
        Service(str(tmp_path / "data"), ServerSettings(keys_file=str(path)))


def test_keys_can_be_taken_back(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    key, text = auth.create(path, scope="read")
    other, _ = auth.create(path, scope="write", prefix="x", note="for x")
    assert auth.Keys(auth.load(path)).caller(text).scope == "read"
    auth.delete(path, key.id)
    assert auth.load(path) == [other]
    with pytest.raises(NotAllowed):
        auth.Keys(auth.load(path)).caller(text)


def test_both_doors_speak_tls(tmp_path: Path) -> None:
    program = shutil.which("openssl")
    assert program is not None, "openssl makes the certificate"
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*made, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL
    )
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with served(tmp_path / "data", **files) as service:
        assert service.flight_url.startswith("grpc+tls://")
        root = certificate.read_bytes()
        with lamina.connect(service.flight_url, tls_root=root) as store:
            store.create_topic("t")
            assert store.append("t", b"secret").durability == "fsynced"
        plain = service.flight_url.replace("grpc+tls", "grpc")
        with lamina.connect(plain, timeout_s=1) as store, pytest.raises(lamina.Unavailable):
            store.topics()
        import ssl

        trusted = ssl.create_default_context(cadata=root.decode())
        found = httpx.get(f"{service.http_url}/v1/topics", verify=trusted)
        assert json.loads(found.text) == {"result": ["t"]}


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="together"):
        Service(str(tmp_path / "data"), ServerSettings(tls_certificate="cert.pem"))
