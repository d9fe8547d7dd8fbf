"""Scans that are read ahead: the same batches, errors in their place, nothing kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.errors import Busy, LaminaError, RecordsMissing
from lamina.server import ahead, scan_parts
from lamina.server.ahead import Pool, ReadAhead
from lamina.server.limits import SPARE_PART, Allowance
from lamina.server.service import Service
from tests.server.rig import served

LARGE = ahead.WORTH_BYTES
LIMIT = 4 * SPARE_PART * LARGE
SOON_S = 30


def batch_of(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number])})


class Made:
    """A scan that notes which batches were begun, by which thread, and can be held up."""

    def __init__(self, count: int, *, fails_at: int = -1) -> None:
        self.begun: list[tuple[int, str]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._counted = threading.Condition()
        self.batches = self._make(count, fails_at)

    def _make(self, count: int, fails_at: int) -> Iterator[pa.RecordBatch]:
        for number in range(count):
            with self._counted:
                self.begun.append((number, threading.current_thread().name))
                self._counted.notify_all()
            assert self.may_go_on.wait(SOON_S)
            if number == fails_at:
                raise RecordsMissing("gone", first=number, end=number + 1, reason="deleted")
            yield batch_of(number)

    def wait_for(self, count: int) -> None:
        """Waits until so many batches were begun."""
        with self._counted:
            assert self._counted.wait_for(lambda: len(self.begun) >= count, SOON_S)

    @property
    def threads(self) -> list[bool]:
        """Of each batch, whether it was made ahead."""
        return ["lamina-ahead" in name for _, name in self.begun]


def test_the_next_batch_is_made_while_one_is_sent() -> None:
    made, room = Made(4), Allowance("bytes", LIMIT)
    scan = ReadAhead(made.batches, Pool(room))
    sent = []
    while (batch := scan.following()) is not None:
        scan.begin(LARGE)
        if len(made.begun) < 4:
            made.wait_for(len(sent) + 2)  # while this one is still on its way
        sent.append(batch.column("number")[0].as_py())
    assert sent == [0, 1, 2, 3]
    assert made.threads == [False, True, True, True]
    assert room.used == 0


def test_what_goes_wrong_ahead_is_told_behind_the_batch_before() -> None:
    made, room = Made(4, fails_at=1), Allowance("bytes", LIMIT)
    scan = ReadAhead(made.batches, Pool(room))
    assert scan.following() == batch_of(0)
    scan.begin(LARGE)
    made.wait_for(2)
    with pytest.raises(RecordsMissing):
        scan.following()
    scan.close()
    assert room.used == 0


def test_small_batches_and_busy_servers_make_nothing_ahead() -> None:
    made, room = Made(3), Allowance("bytes", LIMIT)
    scan = ReadAhead(made.batches, Pool(room))
    assert scan.following() == batch_of(0)
    scan.begin(LARGE - 1)
    assert scan.following() == batch_of(1)
    with room.taking(LIMIT // SPARE_PART - LARGE + 1):
        scan.begin(LARGE)
        assert scan.following() == batch_of(2)
    assert made.threads == [False, False, False]


def test_a_batch_that_no_thread_has_begun_is_made_by_the_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    slow, made, room = Made(1), Made(2), Allowance("bytes", LIMIT)
    slow.may_go_on.clear()
    pool = Pool(room)
    other, scan = ReadAhead(slow.batches, pool), ReadAhead(made.batches, pool)
    other.begin(LARGE)
    slow.wait_for(1)
    assert scan.following() == batch_of(0)
    scan.begin(LARGE)
    assert scan.following() == batch_of(1)
    assert made.threads == [False, False]
    slow.may_go_on.set()
    other.close()
    assert room.used == 0


def test_closing_waits_for_what_is_being_made() -> None:
    made, room = Made(2), Allowance("bytes", LIMIT)
    made.may_go_on.clear()
    scan = ReadAhead(made.batches, Pool(room))
    scan.begin(LARGE)
    assert room.used == LARGE
    made.wait_for(1)
    closing = threading.Thread(target=scan.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    made.may_go_on.set()
    closing.join(SOON_S)
    assert not closing.is_alive()
    assert room.used == 0


# ---------------------------------------------------------------- behind a server


VALUE_BYTES, COUNT = 64 << 10, 96


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        for number in range(0, COUNT, 16):
            store.append("t", [_value(each) for each in range(number, number + 16)])
        yield service


def _value(number: int) -> bytes:
    return number.to_bytes(4, "big") * (VALUE_BYTES // 4)


def _scans(service: Service) -> int:
    page = service.broker.metrics.page().decode()
    counted = 'lamina_calls_total{operation="scan",outcome="ok"} '
    return int(float(page.split(counted)[1].split()[0]))


@pytest.mark.parametrize(
    ("part_bytes", "part_s", "parts"), [(1 << 20, 600.0, 1), (1 << 20, 0.0, 6), (64 << 20, 0.0, 1)]
)
def test_a_scan_comes_in_parts_unless_its_reader_is_fast(
    service: Service, part_bytes: int, part_s: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_parts, "SCAN_BYTES", part_bytes)
    monkeypatch.setattr(scan_parts, "SCAN_S", part_s)
    with lamina.connect(service.flight_url) as store:
        found = [
            value
            for batch in store.scan("t", max_bytes=512 << 10)
            for value in batch.column("value").to_pylist()
        ]
    assert found == [_value(number) for number in range(COUNT)]
    assert _scans(service) == pytest.approx(parts, abs=parts // 3)


def test_a_reader_that_leaves_holds_nothing(service: Service) -> None:
    room = service.broker.inflight
    for _ in range(3):
        with lamina.connect(service.flight_url) as store:
            assert next(iter(store.scan("t", max_bytes=512 << 10))).num_rows
    deadline = time.monotonic() + SOON_S
    while room.used and time.monotonic() < deadline:
        time.sleep(0.01)
    assert room.used == 0


def test_a_scan_is_read_ahead(service: Service) -> None:
    before = _working_ahead()
    with lamina.connect(service.flight_url) as store:
        assert sum(batch.num_rows for batch in store.scan("t", max_bytes=512 << 10)) == COUNT
    assert _working_ahead() - before


def _working_ahead() -> set[int | None]:
    return {each.ident for each in threading.enumerate() if "lamina-ahead" in each.name}


def test_a_scan_reads_on_where_the_room_is_used(service: Service) -> None:
    broker = service.broker
    with (
        lamina.connect(service.flight_url) as store,
        broker.inflight.taking(broker.settings.inflight_bytes // 2),
    ):
        rows = sum(batch.num_rows for batch in store.scan("t", max_bytes=512 << 10))
    assert rows == COUNT
    assert broker.inflight.used == 0


def test_no_room_for_the_batch_itself_is_busy(service: Service) -> None:
    broker = service.broker
    with (
        lamina.connect(service.flight_url, timeout_s=0.5) as store,
        broker.inflight.taking(broker.settings.inflight_bytes),
        pytest.raises(LaminaError) as raised,
    ):
        list(store.scan("t", max_bytes=512 << 10))
    assert isinstance(raised.value, Busy)
