"""TLS and SASL PLAIN by real clients; and a restart under their eyes."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaProducer

import lamina
from lamina.server import auth
from lamina.server.kafka import sessions
from lamina.wire.kafka.connection_apis import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from tests.server.kafka.raw_client import RawClient
from tests.server.rig import served


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    program = shutil.which("openssl")
    assert program is not None, "openssl makes the certificate"
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run(
        [*made, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL
    )
    return {"tls_certificate": str(certificate), "tls_key": str(key)}


def test_clients_come_in_by_tls_with_a_key(tmp_path: Path, tls: dict[str, str]) -> None:
    keys = str(tmp_path / "keys.json")
    _, key = auth.create(keys, scope="admin")
    with served(tmp_path / "data", kafka_port=0, keys_file=keys, **tls) as service:
        common: dict[str, Any] = {
            "bootstrap.servers": service.kafka_address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "anybody",
            "sasl.password": key,
            "ssl.ca.location": tls["tls_certificate"],
        }
        producer = Producer(common)
        producer.produce("safe", b"value")
        assert producer.flush(120) == 0
        consumer = Consumer(common | {"group.id": "safe"})
        consumer.assign([TopicPartition("safe", 0, 0)])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"value"
        consumer.close()
        python = KafkaProducer(
            bootstrap_servers=service.kafka_address,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="anybody",
            sasl_plain_password=key,
            ssl_cafile=tls["tls_certificate"],
        )
        assert python.send("safe", b"more").get(60).offset == 1
        python.close()
        wrong = AdminClient(common | {"sasl.password": "lamina_wrong"})
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=3)
        del wrong  # it would go on trying, also while the server closes


def test_who_comes_without_tls_is_disconnected_and_logged_once(
    tmp_path: Path, tls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        lines = [each.getMessage() for each in caplog.records]
        return [each for each in lines if "no TLS handshake" in each]

    with served(tmp_path / "data", kafka_port=0, **tls) as service:
        for _ in range(3):
            with RawClient(service.kafka_address) as plain:
                plain.socket.sendall(struct.pack(">ihhih", 10, API_VERSIONS.key, 0, 1, -1))
                with contextlib.suppress(OSError):
                    while plain.socket.recv(1 << 16):
                        pass  # an alert, then the end
        deadline = time.monotonic() + 60
        while not said() and time.monotonic() < deadline:
            time.sleep(0.01)
        with RawClient(service.kafka_address):
            pass  # somebody looks whether the port is open
    assert len(said()) == 1
    assert "at 127.0.0.1" in said()[0]


def test_closing_ends_tls_connections_whose_clients_are_silent(
    tmp_path: Path, tls: dict[str, str]
) -> None:
    trusting = ssl.create_default_context(cafile=tls["tls_certificate"])
    with contextlib.ExitStack() as clients:
        with served(tmp_path / "data", kafka_port=0, **tls) as service:
            host, port = service.kafka_address.rsplit(":", 1)
            silent = [
                clients.enter_context(socket.create_connection((host, int(port))))
                for _ in range(20)
            ]
            silent[10:] = [
                clients.enter_context(trusting.wrap_socket(each, server_hostname=host))
                for each in silent[10:]
            ]
        for client in silent:  # the server's thread ended without an error, and hung up
            with contextlib.suppress(OSError):
                assert client.recv(1) == b""


@pytest.mark.parametrize("door", ["plain", "tls"])
def test_clients_that_are_too_many_are_turned_away_with_a_line_a_minute(
    tmp_path: Path,
    tls: dict[str, str],
    door: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secured = tls if door == "tls" else {}
    with (
        contextlib.ExitStack() as clients,
        served(tmp_path / "data", kafka_port=0, connections=2, **secured) as service,
    ):

        def connect(count: int) -> list[RawClient]:
            return [clients.enter_context(RawClient(service.kafka_address)) for _ in range(count)]

        connect(2)
        assert all(each.is_closed() for each in connect(5))
        monkeypatch.setattr(sessions, "FULL_TOLD_S", 0.0)
        assert all(each.is_closed() for each in connect(1))
    told = [each.getMessage() for each in caplog.records if "turned" in each.getMessage()]
    assert [each[:45] for each in told] == [
        "turned Kafka clients away, 1 since this was s",
        "turned Kafka clients away, 5 since this was s",
    ]


def test_a_client_that_was_there_before_the_loop_is_heard(
    tmp_path: Path, tls: dict[str, str]
) -> None:
    trusting = ssl.create_default_context(cafile=tls["tls_certificate"])
    with served(tmp_path / "data", kafka_port=0, **tls) as service:
        host, port = service.kafka_address.rsplit(":", 1)
        for _ in range(50):  # each says its hello in the moment in which it is accepted
            with (
                socket.create_connection((host, int(port)), 5) as plain,
                trusting.wrap_socket(plain, server_hostname=host) as secured,
            ):
                assert secured.version() is not None


def test_topics_are_administered_by_clients(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=0) as service:
        admin = AdminClient({"bootstrap.servers": service.kafka_address})
        admin.create_topics([NewTopic("one", 3, config={"retention.ms": "1000"})])["one"].result()
        assert len(admin.list_topics(timeout=30).topics["one"].partitions) == 3
        python = KafkaAdminClient(bootstrap_servers=service.kafka_address)
        assert "one" in python.list_topics()
        assert python.describe_cluster()["controller_id"] == 1
        python.close()
        admin.delete_topics(["one"])["one"].result()
        assert "one" not in admin.list_topics(timeout=30).topics


def test_offsets_of_topics_that_a_key_is_not_for_are_not_deleted(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, admin = auth.create(keys, scope="admin")
    _, narrow = auth.create(keys, scope="admin", prefix="orders.")
    with served(tmp_path / "data", kafka_port=0, keys_file=keys) as service:
        with lamina.connect(service.flight_url, api_key=admin) as store:
            for topic in ("orders.a", "secret"):
                store.create_topic(topic)
        owner, stranger = (with_key(service.kafka_address, each) for each in (admin, narrow))
        places = {"orders.a": 1, "secret": 2}
        parts = [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": offset}]}
            for name, offset in places.items()
        ]
        owner.ask(OFFSET_COMMIT, 7, {"group_id": "orders.g", "topics": parts})
        asked = [{"name": name, "partitions": [{"partition_index": 0}]} for name in places]
        answer = stranger.ask(OFFSET_DELETE, 0, {"group_id": "orders.g", "topics": asked})
        told = {each["name"]: each["partitions"][0]["error_code"] for each in answer["topics"]}
        assert told == {"orders.a": 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        left = owner.ask(OFFSET_FETCH, 5, {"group_id": "orders.g", "topics": None})["topics"]
        assert [each["name"] for each in left] == ["secret"]
        owner.socket.close()
        stranger.socket.close()


def with_key(address: str | None, key: str) -> RawClient:
    client = RawClient(address)
    assert client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
    said = b"\0anybody\0" + key.encode()
    assert client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": said})["error_code"] == 0
    return client
