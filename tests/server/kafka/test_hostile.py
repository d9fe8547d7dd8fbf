"""Clients that want to harm: bombs, connections that hold on, groups and questions without end."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lamina
from lamina.formats.kafka import batch as batches
from lamina.formats.kafka.batch import HEADER, UNSEALED_BYTES
from lamina.formats.kafka.compression import Codec
from lamina.formats.kernels.crc import crc32c_of
from lamina.groups.coordinator import Coordinator
from lamina.server import auth
from lamina.server.kafka import client_connection, fetching, topic_ids
from lamina.server.kafka.arrivals import Bell
from lamina.server.kafka.client_connection import ClientConnection
from lamina.server.kafka.sessions import Doorway
from lamina.server.kafka.unpacking import LOOP_BYTES
from lamina.server.log_lines import LINES_PER_MINUTE
from lamina.store.store import Store
from lamina.wire.kafka.connection_apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import DESCRIBE_GROUPS, OFFSET_COMMIT, OFFSET_FETCH
from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from lamina.wire.kafka.share_apis import SHARE_GROUP_DESCRIBE
from lamina.wire.kafka.topic_apis import DESCRIBE_CONFIGS, METADATA
from tests.server.kafka.raw_client import RawClient, fetched, made, offsets_of, produced
from tests.server.rig import served

IDLE_MS = 500
REQUEST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("hostile")
    limits = {"request_bytes": REQUEST_BYTES, "inflight_bytes": 32 << 20, "idle_ms": IDLE_MS}
    with served(folder / "data", kafka_port=0, **limits) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t", partitions=16)
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


def packed(size: int, codec: Codec = Codec.ZSTD) -> bytes:
    """A batch of zeros that is small on the wire and large when it is unpacked."""
    plain = made([bytes(10_000)] * (size // 10_000))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec.name.lower()) as out:
        out.write(plain[HEADER.size :])
    body = sink.getvalue().to_pybytes()
    head = HEADER.unpack(plain) | {"attributes": int(codec)}
    head["batch_length"] = HEADER.size - 12 + len(body)
    head["crc32c"] = crc32c_of(HEADER.pack(**head)[UNSEALED_BYTES:] + body)
    return bytes(HEADER.pack(**head) + body)


def codes(answer: dict[str, Any]) -> list[int]:
    return [
        each["error_code"] for topic in answer["responses"] for each in topic["partition_responses"]
    ]


# ---------------------------------------------------------------- bombs


def test_nothing_is_unpacked_for_a_client_that_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = str(tmp_path / "keys.json")
    _, reader = auth.create(keys, scope="read", prefix="mine.")
    _, writer = auth.create(keys, scope="write", prefix="mine.")

    def decoded(*_: object) -> Any:
        raise AssertionError("decoded before it was allowed")

    with served(tmp_path / "data", kafka_port=0, keys_file=keys) as service:
        with RawClient(service.kafka_address) as anybody:  # until the kernels are compiled
            assert anybody.ask(API_VERSIONS, 3, {})["error_code"] == 0
        monkeypatch.setattr(batches, "decode", decoded)
        for key, topic in ((reader, "mine.a"), (reader, "other"), (writer, "other")):
            with RawClient(service.kafka_address) as narrow:
                narrow.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                said = b"\0a\0" + key.encode()
                assert narrow.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": said})["error_code"] == 0
                for size in (50_000, 2_000_000):
                    answer = narrow.ask(PRODUCE, 9, produced(topic, packed(size)))
                    assert codes(answer) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_batches_of_a_request_unpack_to_so_much_together(
    server: Any, client: RawClient, codec: Codec
) -> None:
    bomb = packed(REQUEST_BYTES, codec)
    assert len(bomb) < 20_000
    found = codes(client.ask(PRODUCE, 9, produced("t", *[bomb] * 12)))
    assert found[:7] == [0] * 7
    assert set(found[8:]) == {ErrorCode.MESSAGE_TOO_LARGE}
    assert server.broker.inflight.wait_until_unused(30)


def test_what_is_unpacked_counts_as_bytes_at_work(server: Any, client: RawClient) -> None:
    inflight = server.broker.inflight
    small, large = packed(LOOP_BYTES // 2), packed(4 * LOOP_BYTES)
    with inflight.taking((32 << 20) - LOOP_BYTES):
        assert codes(client.ask(PRODUCE, 9, produced("t", large))) == [ErrorCode.REQUEST_TIMED_OUT]
        assert codes(client.ask(PRODUCE, 9, produced("t", small))) == [0]
    assert codes(client.ask(PRODUCE, 9, produced("t", large))) == [0]
    assert inflight.wait_until_unused(30)


# ---------------------------------------------------------------- connections that hold on


def test_a_client_that_takes_no_answer_holds_nothing_for_long(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = threading.Event()
    real = ClientConnection.pause_writing

    def pause_writing(connection: ClientConnection) -> None:
        real(connection)
        stalled.set()

    monkeypatch.setattr(ClientConnection, "pause_writing", pause_writing)
    with RawClient(server.kafka_address) as store:
        for _ in range(8):
            store.ask(PRODUCE, 9, produced("t", made([b"x" * 900_000]), partition=15))
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server.kafka_address.rsplit(":", 1)
    slow.connect((host, int(port)))
    client = RawClient.__new__(RawClient)
    client.socket, client._count = slow, 0
    with client:
        wanted = fetched("t", 0, max_bytes=REQUEST_BYTES, partition_max_bytes=REQUEST_BYTES)
        wanted["topics"][0]["partitions"][0]["partition"] = 15
        for _ in range(30):
            client.send(FETCH, 11, wanted)
        assert stalled.wait(30)
        assert server.broker.inflight.wait_until_unused(30)


def test_a_client_without_a_key_is_not_waited_for(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    auth.create(keys, scope="read")
    with served(tmp_path / "data", kafka_port=0, keys_file=keys, idle_ms=IDLE_MS) as service:
        for said in (b"", struct.pack(">ihhih", 10, 18, 0, 1, -1)):
            with RawClient(service.kafka_address) as silent:
                silent.socket.sendall(said)
                while silent.socket.recv(1 << 16):
                    pass  # it is told versions, then the connection ends


def test_a_connection_that_is_used_for_nothing_ends_and_a_used_one_stays(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "SILENT_S", 0.3)
    with RawClient(server.kafka_address) as silent, RawClient(server.kafka_address) as waiting:
        wanted = fetched("t", 1 << 20, max_wait_ms=1500)
        wanted["topics"][0]["partitions"][0] |= {"fetch_offset": 0, "partition": 14}
        waiting.send(FETCH, 11, wanted)
        assert silent.is_closed()
        assert waiting.receive(FETCH, 11)[0] == 1  # it was owed an answer


def test_garbage_of_ever_new_numbers_is_logged_a_few_times_and_writes_no_lines_of_its_own(
    server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server.broker.refusals, "_clock", lambda: 1e12)
    server.broker.refusals.sweep()  # what other tests have sent is long ago
    name = b"till\n2026 WARNING forged"
    known = struct.pack(">ihhih", 10 + len(name), API_VERSIONS.key, 0, 1, len(name)) + name
    for number in range(3 * LINES_PER_MINUTE):
        with RawClient(server.kafka_address) as garbling:
            garbling.socket.sendall(known + struct.pack(">ihhih", 10, 8000 + number, 0, 1, -1))
            while garbling.socket.recv(1 << 16):
                pass  # it is told versions, then the connection ends
    said = [text for each in caplog.records if "API 80" in (text := each.getMessage())]
    assert len(said) == LINES_PER_MINUTE
    assert all(r"till\n2026 WARNING forged (" in text for text in said)


def test_the_time_of_a_request_begins_with_its_own_first_byte(server: Any) -> None:
    frame = struct.pack(">ihhih", 10, 18, 0, 1, -1)

    async def timers() -> list[asyncio.TimerHandle | None]:
        loop = asyncio.get_running_loop()
        door = Doorway(server.broker, ThreadPoolExecutor(1), None, 0, connections_max=2)
        near, far = socket.socketpair()
        made = ClientConnection(door, set())
        transport, _ = await loop.connect_accepted_socket(lambda: made, near)
        found = []
        for part in (frame[:7], frame[7:] + frame[:7], frame[7:]):
            size = len(part)
            made.get_buffer(size)[:size] = part
            made.buffer_updated(size)
            found.append(made._idle)
        transport.abort()
        await asyncio.sleep(0)
        far.close()
        return found

    first, second, none = asyncio.run(timers())
    assert first is not None
    assert first.cancelled()
    assert second is not None
    assert second is not first
    assert none is None


class Taking(asyncio.Transport):
    """A transport as CPython 3.13.0 has it, where `writelines` fails once the client hung up."""

    def __init__(self, room: int = 1 << 20) -> None:
        super().__init__()
        self.taken: list[bytes] = []
        self._room = room

    def is_closing(self) -> bool:
        return len(self.taken) >= self._room

    def write(self, data: Any) -> None:
        assert isinstance(data, bytes | bytearray | memoryview)
        self.taken.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        raise TypeError("'NoneType' object is not callable")


@pytest.mark.parametrize("size", [10, 2 * client_connection.KEPT_BYTES])
def test_answers_are_handed_over_by_write_alone(server: Any, size: int) -> None:
    made = ClientConnection(
        Doorway(server.broker, ThreadPoolExecutor(1), None, 0, connections_max=2), set()
    )
    transport, pieces = Taking(), [b"head", np.arange(size, dtype=np.uint8).data, b"", b"tail"]
    made._write(transport, pieces)
    assert b"".join(transport.taken) == b"".join(pieces)


def test_many_small_pieces_are_few_writes_and_none_once_the_client_has_hung_up(server: Any) -> None:
    made = ClientConnection(
        Doorway(server.broker, ThreadPoolExecutor(1), None, 0, connections_max=2), set()
    )
    pieces = [b"%07d " % number for number in range(100_000)]
    transport, hung_up = Taking(), Taking(room=2)
    made._write(transport, pieces)
    assert b"".join(transport.taken) == b"".join(pieces)
    assert len(transport.taken) < 20
    made._write(hung_up, pieces)
    assert hung_up.taken == transport.taken[:2]


def test_half_of_a_large_request_ends_its_connection_and_gives_its_room_back(
    server: Any, client: RawClient
) -> None:
    client.ask(API_VERSIONS, 3, {})
    client.socket.sendall(struct.pack(">ihhih", REQUEST_BYTES, 0, 9, 7, -1) + bytes(1000))
    assert client.is_closed()
    assert server.broker.inflight.wait_until_unused(30)


# ---------------------------------------------------------------- questions without end


def test_a_long_list_of_small_parts_counts_for_what_it_becomes(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    inflight = server.broker.inflight
    real = inflight.take

    def take(amount: int = 1, held: int = 0) -> None:
        taken.append(amount)
        real(amount, held)

    monkeypatch.setattr(inflight, "take", take)
    wanted = fetched("t", 0)
    parts = wanted["topics"][0]["partitions"]
    wanted["topics"][0]["partitions"] = parts * 2_000
    client.ask(FETCH, 11, wanted)
    assert max(taken) > 2_000 * 800  # some 28 bytes of each came
    assert inflight.wait_until_unused(30)


def test_of_the_long_polls_of_a_connection_one_listens_to_the_log(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening, most = 0, 0

    class Counted(Bell):
        def __enter__(self) -> Bell:
            nonlocal listening, most
            listening += 1
            most = max(most, listening)
            return super().__enter__()

        def __exit__(self, *given: object) -> None:
            nonlocal listening
            listening -= 1
            super().__exit__(*given)

    monkeypatch.setattr(fetching, "Bell", Counted)
    wanted = fetched("t", 0, max_wait_ms=20_000)
    wanted["topics"][0]["partitions"][0]["partition"] = 13
    for _ in range(20):
        client.send(FETCH, 11, wanted)
    with RawClient(server.kafka_address) as other:
        other.ask(PRODUCE, 9, produced("t", made([b"x"]), partition=13))
    for number in range(1, 21):
        found, answer = client.receive(FETCH, 11)
        assert found == number
        records = answer["responses"][0]["partitions"][0]["records"]
        assert offsets_of(records) == [(0, 0, 1)]
    assert most <= 1


def test_an_append_has_a_long_poll_look_at_its_own_partition(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic("wide", partitions=40)
    looked: list[int] = []
    real = fetching.Wanted.look

    def look(wanted: fetching.Wanted, call: Any) -> None:
        looked.append(wanted.partition)
        real(wanted, call)

    monkeypatch.setattr(fetching.Wanted, "look", look)
    parts = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for number in range(40)
    ]
    wanted = fetched("wide", 0, max_wait_ms=20_000, min_bytes=1 << 16)
    wanted["topics"] = [{"topic": "wide", "partitions": parts}]
    client.send(FETCH, 11, wanted)
    with RawClient(server.kafka_address) as other:
        while len(looked) < 80:  # when it came, and when it listened
            time.sleep(0.01)
        for _ in range(10):
            other.ask(PRODUCE, 9, produced("wide", made([b"x"]), partition=7))
        large = made([bytes(1 << 16)])
        other.ask(PRODUCE, 9, produced("wide", large, partition=9))
    _, answer = client.receive(FETCH, 11)
    found = {
        each["partition_index"]: len(offsets_of(each["records"]))
        for each in answer["responses"][0]["partitions"]
        if len(each["records"])
    }
    assert found.keys() == {7, 9}
    assert set(looked[80:]) == {7, 9}


def test_long_lists_of_groups_are_answered_aside_and_from_one_list(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    listed: list[int] = []
    real_known = Coordinator.is_known
    real_groups = Store.groups

    def is_known(coordinator: Coordinator, group: str) -> bool:
        threads.add(threading.current_thread().name)
        return real_known(coordinator, group)

    def groups(store: Store, topic: str | None = None) -> list[tuple[str, str]]:
        listed.append(1)
        return real_groups(store, topic)

    monkeypatch.setattr(Coordinator, "is_known", is_known)
    monkeypatch.setattr(Store, "groups", groups)
    names = [f"group-{number:09}" for number in range(5_000)]
    answer = client.ask(SHARE_GROUP_DESCRIBE, 1, {"group_ids": names})
    assert {each["error_code"] for each in answer["groups"]} == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert len(answer["groups"]) == 5_000
    assert len(listed) < 20, "once, and by what looks at groups now and then"
    assert "lamina-kafka" not in threads, "the event loop"


def test_ids_that_nobody_has_do_not_make_the_server_look_at_all_topics(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    real = topic_ids.id_of
    monkeypatch.setattr(topic_ids, "id_of", lambda *given: looked.append(given[1]) or real(*given))
    ids = [{"name": None, "topic_id": n.to_bytes(16)} for n in range(1, 300)]
    answer = client.ask(METADATA, 12, {"topics": ids})
    assert {each["error_code"] for each in answer["topics"]} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert len(looked) <= len(server.broker.store.topics())
    with lamina.connect(server.flight_url) as store:
        store.create_topic("later")
    named = client.ask(METADATA, 12, {"topics": [{"name": "later"}]})["topics"][0]
    found = client.ask(METADATA, 12, {"topics": [{"name": None, "topic_id": named["topic_id"]}]})
    assert found["topics"][0]["name"] == "later"


def test_what_is_asked_for_often_is_answered_once(client: RawClient) -> None:
    topics = [{"name": "t"}] * 50
    assert len(client.ask(METADATA, 12, {"topics": topics})["topics"]) == 1
    assert len(client.ask(DESCRIBE_GROUPS, 5, {"groups": ["g"] * 50})["groups"]) == 1
    groups = [{"group_id": "g", "topics": None}] * 50
    assert len(client.ask(OFFSET_FETCH, 8, {"groups": groups})["groups"]) == 1
    resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}] * 50
    assert len(client.ask(DESCRIBE_CONFIGS, 4, {"resources": resources})["results"]) == 1


def test_so_many_groups_commit_to_a_topic_and_no_more(server: Any, client: RawClient) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic("few", config={"max.groups": 3})

    def commit(group: str) -> int:
        parts = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
        asked = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "few", "partitions": parts}],
        }
        answer = client.ask(OFFSET_COMMIT, 8, asked)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    assert [commit(f"g{n}") for n in range(5)] == [0, 0, 0, *[ErrorCode.INVALID_REQUEST] * 2]
    assert commit("g1") == 0
    server.broker.store.coordinator.delete("g0")
    assert commit("g4") == 0
