"""Transactions of the sink that are finished long after they were cut off, and parts that lie."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lamina
from lamina.api import ProducerStamp
from lamina.errors import CorruptData
from lamina.formats.documents.sink_transaction import Transaction
from lamina.formats.kernels.crc import crc32c_of
from lamina.spark.commit import transaction as transactions
from lamina.spark.commit.handover import publish
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from tests.server.rig import served
from tests.spark import test_server_sink as server_sink
from tests.spark.logs import values
from tests.spark.test_transactions import expected, make_topic, stage, transaction, write


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    make_topic(LocalFiles(), path)
    return path


@pytest.fixture
def small_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """More appends for each partition than a producer's journal remembers."""
    monkeypatch.setattr(transactions, "APPEND_BYTES", 1)


# ---------------------------------------------------------------- long after


class CutOff(Exception):
    """The process that commits ends here."""


def cut_off_after(monkeypatch: pytest.MonkeyPatch, appends: int, of: Any = Store) -> None:
    """Has the commit end behind some appends: their rows are stored, and nobody wrote so."""
    honest, left = of.append, [appends]

    def counting(self: Any, *given: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise CutOff
        return honest(self, *given, **more)

    monkeypatch.setattr(of, "append", counting)


def wait_until_producers_expire(store: Store, topic: str) -> None:
    """Maintains the store until a producer of a session is forgotten."""
    session = 17
    store.append(topic, [b"by a session"], partition=0, producer=ProducerStamp(session, 0, 0))
    while store.producer_position(topic, 0, session) is not None:
        store.maintain()


@pytest.mark.parametrize("appends", [0, 1, 5])
@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
@pytest.mark.usefixtures("small_appends")
def test_a_commit_that_was_cut_off_is_finished_once_however_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, appends: int
) -> None:
    files, data = LocalFiles(), str(tmp_path / "data")
    make_topic(files, data, format_name)
    with Store(data) as store:
        store.alter_topic("t", {"producer.id.expiration.ms": 1})
    write(files, data, 1)
    with monkeypatch.context() as patched:
        cut_off_after(patched, appends)
        with pytest.raises(CutOff):
            write(files, data, 2)
    with Store(data) as store:
        wait_until_producers_expire(store, "t")
    assert write(files, data, 2, backwards=True) is False, "it was decided before"
    write(files, data, 3)
    with Store(data) as store:
        assert values(store, "t") - Counter([b"by a session"]) == expected(1, 2, 3)


@pytest.mark.usefixtures("small_appends")
def test_a_commit_to_a_server_that_was_cut_off_is_finished_once_however_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_sink.make_topic(tmp_path / "data")
    with served(tmp_path / "data") as service:
        store, url = service.broker.store, service.flight_url
        store.alter_topic("t", {"producer.id.expiration.ms": 1})
        where = server_sink.target(url, str(tmp_path / "staging"))
        with monkeypatch.context() as patched:
            cut_off_after(patched, 5, of=lamina.RemoteStore)
            with pytest.raises(CutOff):
                server_sink.write(where, 1)
        wait_until_producers_expire(store, "t")
        server_sink.write(where, 1)
        held = server_sink.held(url) - Counter([b"by a session"])
        assert held == server_sink.expected(1)


def test_what_the_producer_of_an_earlier_version_began_it_stores_to_the_end(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "APPEND_BYTES", 1)
    with monkeypatch.context() as patched:
        patched.setattr(transactions, "producer_of", transactions.former_producer_of)
        cut_off_after(patched, 3)
        with pytest.raises(CutOff):
            write(LocalFiles(), data, 1)
    write(LocalFiles(), data, 1)
    write(LocalFiles(), data, 2)
    with Store(data) as store:
        assert values(store, "t") == expected(1, 2)


# ---------------------------------------------------------------- hostile parts


def forged(data: str, batch: pa.RecordBatch, spoil: Any) -> Transaction:
    """A transaction whose part was changed by somebody who knows checksums."""
    part = stage(LocalFiles(), data, 1, batch)
    path = Path(data) / "sink" / "of-app" / "1" / part.name
    (run,) = part.runs[:1]
    message = bytearray(path.read_bytes()[run.position : run.position + run.length])
    spoil(message)
    path.write_bytes(bytes(message))
    changed = replace(run, position=0, length=len(message), crc32c=crc32c_of(bytes(message)))
    return transaction(1, replace(part, runs=(changed,)))


def offsets_that_lie(message: bytearray) -> None:
    """Puts the end of every value far behind the data, as a stranger's heap would be read."""
    ends = np.arange(9, dtype=np.int32) * 5
    at = bytes(message).index(ends.astype("<i4").tobytes())
    message[at : at + 36] = (ends * 1_000_000).astype("<i4").tobytes()


def cut_short(message: bytearray) -> None:
    """Takes the last buffers away."""
    del message[-16:]


@pytest.mark.parametrize("spoil", [offsets_that_lie, cut_short])
def test_a_part_whose_offsets_lie_is_refused_before_it_is_decided(data: str, spoil: Any) -> None:
    batch = pa.record_batch({"value": pa.array([b"row %d" % n for n in range(8)], pa.binary())})
    lying = forged(data, batch, spoil)
    with pytest.raises(CorruptData, match=r"\.part"):
        publish(data, lying, files=LocalFiles(), timeout_ms=1000)
    write(LocalFiles(), data, 1)
    with Store(data) as store:
        assert values(store, "t") == expected(1)


def test_a_part_with_other_rows_than_its_commit_says_is_refused(data: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"row"] * 8, pa.binary())})
    honest = forged(data, batch, lambda message: None)
    (part,) = honest.parts
    lying = transaction(1, replace(part, runs=(replace(part.runs[0], rows=9),)))
    with pytest.raises(CorruptData, match="other rows"):
        publish(data, lying, files=LocalFiles(), timeout_ms=1000)
