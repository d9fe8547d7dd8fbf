"""Requests of transactions, one at a time: numbers by version, keys, prefixes, stable offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import lamina
from lamina.server import auth
from lamina.store.store import Store
from lamina.store.transaction_states import Claim
from lamina.wire.kafka.connection_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import FIND_COORDINATOR, OFFSET_FETCH
from lamina.wire.kafka.record_apis import INIT_PRODUCER_ID, LIST_OFFSETS, PRODUCE
from lamina.wire.kafka.transaction_apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
)
from tests.server.kafka.raw_client import RawClient, made, produced
from tests.server.rig import served

BYTES_MAX = 1 << 20
VERSIONS = range(4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    settings = {"kafka_port": 0, "kafka_transaction_bytes": BYTES_MAX}
    with served(tmp_path_factory.mktemp("kafka") / "data", **settings) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t", partitions=2)
            store.create_topic("w", format="wal")
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as opened:
        yield opened


def in_transaction(data: bytes, claim: Claim, sequence: int = 0) -> bytes:
    """A batch as a producer with a transaction sends it."""
    out = bytearray(data)
    out[22] |= 1 << 4
    out[43:57] = struct.pack(">qhi", claim.producer_id, claim.epoch, sequence)
    out[17:21] = google_crc32c.value(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def init(client: RawClient, name: str, version: int = 4, **more: Any) -> dict[str, Any]:
    request = {"transactional_id": name, "transaction_timeout_ms": 60_000, **more}
    return client.ask(INIT_PRODUCER_ID, version, request)


def claimed(client: RawClient, name: str) -> Claim:
    answer = init(client, name)
    assert answer["error_code"] == 0
    return Claim(name, answer["producer_id"], answer["producer_epoch"])


def who(claim: Claim) -> dict[str, Any]:
    return {
        "transactional_id": claim.transactional_id,
        "producer_id": claim.producer_id,
        "producer_epoch": claim.epoch,
    }


def added(client: RawClient, claim: Claim, *places: tuple[str, int], version: int = 3) -> list[int]:
    topics = [{"name": topic, "partitions": [number]} for topic, number in places]
    answer = client.ask(ADD_PARTITIONS_TO_TXN, version, who(claim) | {"topics": topics})
    return [
        each["partition_error_code"]
        for topic in answer["results_by_topic"]
        for each in topic["results_by_partition"]
    ]


def ended(client: RawClient, claim: Claim, *, commit: bool = True, version: int = 3) -> int:
    return int(client.ask(END_TXN, version, who(claim) | {"committed": commit})["error_code"])


def sent(client: RawClient, claim: Claim, data: bytes, topic: str = "t", **more: Any) -> Any:
    request = produced(topic, data) | {"transactional_id": claim.transactional_id} | more
    return client.ask(PRODUCE, 9, request)["responses"][0]["partition_responses"][0]


def values(server: Any, topic: str = "t") -> list[bytes]:
    with lamina.connect(server.flight_url) as store:
        return [value for batch in store.scan(topic, 0) for value in batch["value"].to_pylist()]


def end_of(client: RawClient) -> int:
    """The last stable offset, which is the end."""
    partition = {"partition_index": 0, "timestamp": -1}
    request = {"isolation_level": 1, "topics": [{"name": "t", "partitions": [partition]}]}
    answer = client.ask(LIST_OFFSETS, 6, request)
    return int(answer["topics"][0]["partitions"][0]["offset"])


def test_every_version_is_answered_from_the_beginning_to_the_end(
    server: Any, client: RawClient
) -> None:
    before = len(values(server))
    for version in VERSIONS:
        claim = claimed(client, f"v{version}")
        assert added(client, claim, ("t", 0), version=version) == [0]
        told = sent(client, claim, in_transaction(made([b"v"]), claim))
        assert (told["error_code"], told["base_offset"]) == (0, -1)
        request = who(claim) | {"group_id": f"g{version}"}
        assert client.ask(ADD_OFFSETS_TO_TXN, version, request)["error_code"] == 0
        place = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "note"}
        request |= {"topics": [{"name": "t", "partitions": [place]}]}
        answer = client.ask(TXN_OFFSET_COMMIT, version, request)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0
        assert end_of(client) == before + version
        assert ended(client, claim, version=version) == 0
        assert end_of(client) == before + version + 1
        found = server.broker.store.coordinator.offsets.of(f"g{version}")
        assert found["t", 0].metadata == "note"


@pytest.mark.parametrize("version", VERSIONS)
def test_who_is_fenced_is_told_in_the_word_of_its_version(client: RawClient, version: int) -> None:
    old = claimed(client, "fenced")
    claimed(client, "fenced")
    known = version >= 2
    expected = ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
    assert added(client, old, ("t", 0), version=version) == [expected]
    assert ended(client, old, version=version) == expected
    request = who(old) | {"group_id": "g"}
    assert client.ask(ADD_OFFSETS_TO_TXN, version, request)["error_code"] == expected
    place = {"partition_index": 0, "committed_offset": 3, "committed_metadata": None}
    request |= {"topics": [{"name": "t", "partitions": [place]}]}
    answer = client.ask(TXN_OFFSET_COMMIT, version, request)
    (found,) = answer["topics"][0]["partitions"]
    assert found["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH
    told = sent(client, old, in_transaction(made([b"z"]), old))
    assert told["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(("version", "expected"), [(3, 47), (4, 90)])
def test_a_claim_to_an_old_epoch_is_fenced(client: RawClient, version: int, expected: int) -> None:
    old = claimed(client, "claims")
    for _ in range(2):
        claimed(client, "claims")
    own = {"producer_id": old.producer_id, "producer_epoch": old.epoch}
    assert init(client, "claims", version, **own)["error_code"] == expected


def test_the_coordinator_of_a_transactional_id_is_this_server(client: RawClient) -> None:
    for version in (1, 3):
        answer = client.ask(FIND_COORDINATOR, version, {"key": "x", "key_type": 1})
        assert (answer["error_code"], answer["node_id"]) == (0, 1)
    answer = client.ask(FIND_COORDINATOR, 4, {"coordinator_keys": ["x", "y"], "key_type": 1})
    assert [each["error_code"] for each in answer["coordinators"]] == [0, 0]


@pytest.mark.parametrize("timeout_ms", [0, 15 * 60_000 + 1])
def test_timeouts_out_of_range_are_refused(client: RawClient, timeout_ms: int) -> None:
    answer = init(client, "long", transaction_timeout_ms=timeout_ms)
    assert answer["error_code"] == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_partitions_are_added_all_or_none(client: RawClient) -> None:
    claim = claimed(client, "all")
    unknown, left = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert added(client, claim, ("t", 0), ("nowhere", 0), ("t", 9)) == [left, unknown, unknown]
    told = sent(client, claim, in_transaction(made([b"x"]), claim))
    assert told["error_code"] == ErrorCode.INVALID_TXN_STATE


def test_an_end_without_a_transaction(client: RawClient) -> None:
    claim = claimed(client, "none")
    assert ended(client, claim) == ErrorCode.INVALID_TXN_STATE
    assert ended(client, claim, commit=False) == 0
    stranger = Claim("none", claim.producer_id + 1, 0)
    assert ended(client, stranger) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert ended(client, Claim("never seen", 0, 0)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_batches_and_requests_have_to_agree(server: Any, client: RawClient) -> None:
    claim = claimed(client, "mixed")
    assert added(client, claim, ("t", 0)) == [0]
    before = values(server)
    told = sent(client, claim, made([b"plain"]))
    assert told["error_code"] == ErrorCode.INVALID_RECORD
    told = sent(client, claim, in_transaction(made([b"x"]), claim), transactional_id=None)
    assert told["error_code"] == ErrorCode.INVALID_RECORD
    nobody = Claim("mixed", -1, -1)
    told = sent(client, claim, in_transaction(made([b"x"]), nobody, -1))
    assert told["error_code"] == ErrorCode.INVALID_RECORD
    assert ended(client, claim) == 0
    assert values(server) == before


def test_what_a_topic_cannot_keep_is_refused_and_names_the_record(client: RawClient) -> None:
    claim = claimed(client, "strict")
    assert added(client, claim, ("w", 0)) == [0]
    data = in_transaction(made([b"a", b"b"], keys=[None, b"k"]), claim)
    told = sent(client, claim, data, "w")
    assert told["error_code"] == ErrorCode.INVALID_RECORD
    assert [each["batch_index"] for each in told["record_errors"]] == [1]
    assert ended(client, claim, commit=False) == 0


def test_a_transaction_that_is_too_large_is_refused_for_good(client: RawClient) -> None:
    claim = claimed(client, "large")
    assert added(client, claim, ("t", 0)) == [0]
    data = in_transaction(made([b"x" * BYTES_MAX]), claim)
    assert sent(client, claim, data)["error_code"] == ErrorCode.RECORD_LIST_TOO_LARGE
    assert ended(client, claim, commit=False) == 0


def test_sequences_of_a_transaction_are_judged_when_they_come(client: RawClient) -> None:
    claim = claimed(client, "counted")
    assert added(client, claim, ("t", 1)) == [0]

    def told(sequence: int) -> int:
        data = in_transaction(made([b"x"]), claim, sequence)
        request = produced("t", data, partition=1) | {"transactional_id": "counted"}
        answer = client.ask(PRODUCE, 9, request)["responses"][0]
        return int(answer["partition_responses"][0]["error_code"])

    assert [told(each) for each in (1, 0, 0, 2, 1)] == [
        *(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0),
        *(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0),
    ]
    assert ended(client, claim, commit=False) == 0


def test_requests_of_one_connection_are_kept_in_their_order(server: Any, client: RawClient) -> None:
    claim = claimed(client, "ordered")
    assert added(client, claim, ("t", 0)) == [0]
    before = len(values(server))
    for number in range(20):
        data = in_transaction(made([b"%d" % number]), claim, number)
        client.send(PRODUCE, 9, produced("t", data) | {"transactional_id": "ordered"})
    for _ in range(20):
        _, answer = client.receive(PRODUCE, 9)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    assert ended(client, claim) == 0
    assert values(server)[before:] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("version", [7, 8])
def test_stable_offsets_are_those_without_a_transaction_behind_them(
    client: RawClient, version: int
) -> None:
    claim, group = claimed(client, "stable"), f"stable{version}"
    request = who(claim) | {"group_id": group}
    assert client.ask(ADD_OFFSETS_TO_TXN, 3, request)["error_code"] == 0
    place = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    request |= {"topics": [{"name": "t", "partitions": [place]}]}
    answer = client.ask(TXN_OFFSET_COMMIT, 3, request)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0

    def fetched(*, stable: bool, every: bool = False) -> list[tuple[int, int]]:
        asked = {"group_id": group, "topics": None if every else [
            {"name": "t", "partition_indexes": [0]}
        ]}  # fmt: skip
        given = {"groups": [asked]} if version >= 8 else asked
        answer = client.ask(OFFSET_FETCH, version, given | {"require_stable": stable})
        found = answer["groups"][0] if version >= 8 else answer
        return [
            (each["error_code"], each["committed_offset"])
            for topic in found["topics"]
            for each in topic["partitions"]
        ]

    unstable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert fetched(stable=True) == fetched(stable=True, every=True) == [unstable]
    assert fetched(stable=False) == [(0, -1)]
    assert ended(client, claim) == 0
    assert fetched(stable=True) == fetched(stable=True, every=True) == [(0, 3)]


def test_offsets_of_a_member_that_is_none_are_refused(client: RawClient) -> None:
    claim = claimed(client, "member")
    request = who(claim) | {"group_id": "nobody here"}
    assert client.ask(ADD_OFFSETS_TO_TXN, 3, request)["error_code"] == 0
    place = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    request |= {"topics": [{"name": "t", "partitions": [place]}], "generation_id": 4}
    answer = client.ask(TXN_OFFSET_COMMIT, 3, request | {"member_id": "m"})
    (found,) = answer["topics"][0]["partitions"]
    assert found["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert ended(client, claim, commit=False) == 0


def test_open_transactions_are_counted(server: Any, client: RawClient) -> None:
    claim = claimed(client, "counts")
    assert added(client, claim, ("t", 0)) == [0]
    page = server.broker.metrics.page().decode()
    assert 'lamina_transactions{state="open"} 1.0' in page
    assert ended(client, claim, commit=False) == 0
    assert 'lamina_transactions{state="open"} 0.0' in server.broker.metrics.page().decode()


# ---------------------------------------------------------------- keys


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    path = str(tmp_path / "keys")
    made_keys = {
        scope: auth.create(path, scope=scope, prefix="mine.")[1] for scope in ("write", "read")
    }
    with Store(str(tmp_path / "data")) as store:
        for topic in ("mine.t", "theirs.t"):
            store.create_topic(topic)
    with served(tmp_path / "data", kafka_port=0, keys_file=path) as service:
        yield service, made_keys


def let_in(service: Any, key: str) -> RawClient:
    client = RawClient(service.kafka_address)
    client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    token = b"\0any\0" + key.encode()
    assert client.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": token})["error_code"] == 0
    return client


def test_a_key_covers_ids_topics_and_groups_by_its_prefix(
    guarded: tuple[Any, dict[str, str]],
) -> None:
    service, keys = guarded
    no_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with let_in(service, keys["read"]) as reader:
        assert init(reader, "mine.x")["error_code"] == no_id
    with let_in(service, keys["write"]) as client:
        answer = client.ask(FIND_COORDINATOR, 3, {"key": "theirs.x", "key_type": 1})
        assert answer["error_code"] == init(client, "theirs.x")["error_code"] == no_id
        claim = claimed(client, "mine.x")
        theirs = Claim("theirs.x", claim.producer_id, claim.epoch)
        assert added(client, theirs, ("mine.t", 0)) == [no_id]
        assert ended(client, theirs) == no_id
        not_theirs = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        left = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert added(client, claim, ("mine.t", 0), ("theirs.t", 0)) == [left, not_theirs]
        assert added(client, claim, ("mine.t", 0)) == [0]
        data = in_transaction(made([b"x"]), claim)
        assert sent(client, claim, data, "theirs.t")["error_code"] == not_theirs
        assert sent(client, theirs, data, "mine.t")["error_code"] == no_id
        request = who(claim) | {"group_id": "theirs.g"}
        no_group = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert client.ask(ADD_OFFSETS_TO_TXN, 3, request)["error_code"] == no_group
        place = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
        topics = [{"name": "mine.t", "partitions": [place]}]
        answer = client.ask(TXN_OFFSET_COMMIT, 3, request | {"topics": topics})
        assert answer["topics"][0]["partitions"][0]["error_code"] == no_group
        request = who(claim) | {"group_id": "mine.g"}
        assert client.ask(ADD_OFFSETS_TO_TXN, 3, request)["error_code"] == 0
        topics = [{"name": "theirs.t", "partitions": [place]}]
        answer = client.ask(TXN_OFFSET_COMMIT, 3, request | {"topics": topics})
        assert answer["topics"][0]["partitions"][0]["error_code"] == not_theirs
        assert ended(client, claim, commit=False) == 0
