"""Transactions of a store: kept aside, stored once at their end, bounded, and fenced."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from lamina.api.memberships import Committed
from lamina.errors import (
    Busy,
    Closed,
    InvalidRequest,
    LaminaError,
    NewerFormat,
    OutOfSequence,
    Poisoned,
    StorageFull,
    UnknownTopic,
    UnsupportedField,
)
from lamina.formats import transaction_file
from lamina.formats.kernels.crc import crc32c_of
from lamina.store import transactions
from lamina.store.store import Store
from lamina.store.transaction_states import Claim, State, TransactionRefusal, TransactionRefused
from lamina_torture.faults.transactions import made
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles

FOLDER = "/srv/data/transactions"
MINUTE_MS = 60_000
FORMATS = ("frame", "keratin", "wal")


class Clock:
    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Rig:
    """A store with a topic of two partitions, and a producer."""

    def __init__(self, format_name: str = "keratin") -> None:
        self.files, self.clock, self.format = SimulatedFiles(), Clock(), format_name
        self.store = self.opened()
        self.store.create_topic("t", partitions=2, format=format_name)
        self.sent: dict[tuple[str, int], int] = {}

    def opened(self) -> Store:
        return open_store(self.files, now_ms=self.clock)

    def reopened(self, files: SimulatedFiles | None = None) -> None:
        if files is None:
            self.store.close()
        else:
            self.files = files
        self.store = self.opened()

    @property
    def own(self) -> transactions.Transactions:
        return self.store.transactions

    def begun(self, name: str = "x") -> Claim:
        self.sent.clear()
        return self.own.init(name, MINUTE_MS)

    def send(self, claim: Claim, *values: str, partition: int = 0, topic: str = "t") -> None:
        place = topic, partition
        self.own.add_partitions(claim, [place])
        data, batch = made(list(values), self.sent.get(place, 0))
        self.own.stage(claim, place, batch, data)
        self.sent[place] = self.sent.get(place, 0) + len(values)

    def read(self, partition: int = 0, topic: str = "t") -> list[str]:
        start = 1 if self.format == "wal" else 0
        found = [each["value"].to_pylist() for each in self.store.scan(topic, partition, start)]
        return [value.decode() for values in found for value in values]

    def names(self) -> list[str]:
        return self.files.list(FOLDER)


@pytest.fixture(params=FORMATS)
def rig(request: pytest.FixtureRequest) -> Any:
    made_rig = Rig(request.param)
    yield made_rig
    made_rig.store.close()


@pytest.fixture
def one() -> Any:
    made_rig = Rig()
    yield made_rig
    made_rig.store.close()


def refusal(action: Any, *given: Any, **named: Any) -> TransactionRefusal:
    with pytest.raises(TransactionRefused) as found:
        action(*given, **named)
    return found.value.refusal


# ---------------------------------------------------------------- all or nothing


def test_nothing_is_read_before_the_commit_and_everything_after_it(rig: Rig) -> None:
    claim = rig.begun()
    rig.send(claim, "a", "b")
    rig.send(claim, "c", partition=1)
    rig.send(claim, "d")
    assert (rig.read(0), rig.read(1)) == ([], [])
    rig.own.end(claim, commit=True)
    assert (rig.read(0), rig.read(1)) == (["a", "b", "d"], ["c"])
    assert rig.names() == []


def test_aborted_records_are_in_no_log_and_their_sequences_are_no_gap(rig: Rig) -> None:
    claim = rig.begun()
    for number in range(4):
        rig.send(claim, f"{number}")
        rig.own.end(claim, commit=number % 2 == 1)
    assert rig.read() == ["1", "3"]
    rig.reopened()
    assert rig.read() == ["1", "3"]


def test_what_is_large_is_spilled_and_comes_in_its_order(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 200)
    claim = rig.begun()
    for number in range(30):
        rig.send(claim, f"{number}", partition=number % 2)
    assert [name.split(".")[1] for name in rig.names()] == ["staged"]
    rig.own.end(claim, commit=True)
    assert rig.read(1) == [f"{number}" for number in range(1, 30, 2)]
    rig.send(claim, *("x" * 50 for _ in range(20)))
    rig.own.end(claim, commit=False)
    assert (rig.names(), rig.own.counts().staged_bytes) == ([], 0)


def test_the_end_of_a_transaction_may_be_asked_for_again(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    for _ in range(2):
        one.own.end(claim, commit=True)
    assert refusal(one.own.end, claim, commit=False) is TransactionRefusal.INVALID_TXN_STATE
    one.reopened()
    one.own.end(claim, commit=True)
    assert one.read() == ["a"]


@pytest.mark.parametrize("is_spilled", [False, True])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_decided_file_that_cannot_be_read_for_now_is_not_written_again(
    rig: Rig, number: int, is_spilled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try once wrote the rest of it behind a hole, over what was committed."""
    if is_spilled:
        monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 200)
    values = [f"{at}" for at in range(30)]
    claim = rig.begun()
    rig.send(claim, *values)
    rig.files.fail("open", error=number)
    found = refusal(rig.own.end, claim, commit=True)
    assert found is TransactionRefusal.COORDINATOR_LOAD_IN_PROGRESS
    assert (rig.own.counts().open, rig.own.counts().decided) == (0, 1)
    assert refusal(rig.own.end, claim, commit=False) is TransactionRefusal.INVALID_TXN_STATE
    disk = rig.files.snapshot().crash("dropped")
    rig.own.end(claim, commit=True)
    assert (rig.read(), rig.names(), rig.own.counts().decided) == (values, [], 0)
    rig.reopened(disk)
    assert rig.read() == values


@pytest.mark.parametrize("what", ["foreign", "newer", "torn", "zeros"])
def test_what_stands_in_place_of_an_open_transaction_is_dropped_only_if_it_is_one(
    one: Rig, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Any file of that name was removed unseen."""
    monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 0)
    one.send(one.begun(), "a")
    (name,) = one.names()
    path, own = f"{FOLDER}/{name}", one.files.contents()[f"{FOLDER}/{name}"]
    head = transaction_file.FILE_HEADER_BYTES
    fields = own[:8] + b"\0\2" + own[10 : head - 4]
    bytes_now = {
        "foreign": b"Dear reader, this is a letter.",
        "newer": fields + crc32c_of(fields).to_bytes(4, "big") + own[head:],
        "torn": own[: head + 9],
        "zeros": bytes(700),
    }[what]
    disk = one.files.snapshot().restart()
    disk.replace(path, bytes_now)
    if what == "newer":
        with pytest.raises(NewerFormat, match=r"\.staged"):
            open_store(disk)
        assert disk.contents()[path] == bytes_now
        return
    one.reopened(disk)
    assert one.names() == []
    events = one.store.recovery_report.of("quarantined")
    assert [event.path for event in events] == ([path] if what == "foreign" else [])
    if events:
        assert disk.contents()[str(events[0].kept_in)] == bytes_now


def test_an_empty_transaction_commits_without_a_file(one: Rig) -> None:
    claim = one.begun()
    one.own.add_partitions(claim, [("t", 0)])
    one.own.end(claim, commit=True)
    assert not one.files.exists(FOLDER)


def test_a_batch_that_comes_again_is_kept_once(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    data, batch = made(["a"], 0)
    one.own.stage(claim, ("t", 0), batch, data)
    with pytest.raises(OutOfSequence):
        one.own.stage(claim, ("t", 0), *reversed(made(["c"], 2)))
    one.own.end(claim, commit=True)
    one.own.add_partitions(claim, [("t", 0)])
    one.own.stage(claim, ("t", 0), batch, data)
    one.own.end(claim, commit=True)
    assert one.read() == ["a"]


def test_records_for_what_was_not_added_or_is_not_there_are_refused(one: Rig) -> None:
    claim = one.begun()
    data, batch = made(["a"], 0)
    state = TransactionRefusal.INVALID_TXN_STATE
    assert refusal(one.own.stage, claim, ("t", 0), batch, data) is state
    one.own.add_partitions(claim, [("t", 0)])
    assert refusal(one.own.stage, claim, ("t", 1), batch, data) is state
    with pytest.raises(UnknownTopic):
        one.own.stage(claim, ("nothing", 0), batch, data)


def test_what_a_topic_cannot_keep_is_refused_when_it_is_sent(one: Rig) -> None:
    claim = one.begun()
    one.store.create_topic("keys", config={"cleanup.policy": "compact"})
    one.own.add_partitions(claim, [("keys", 0)])
    data, batch = made(["a"], 0)
    with pytest.raises(UnsupportedField, match="no key"):
        one.own.stage(claim, ("keys", 0), batch, data)


def test_what_was_accepted_is_stored_whatever_the_settings_say_by_then(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.store.alter_topic("t", {"cleanup.policy": "compact"})
    one.own.end(claim, commit=True)
    assert one.read() == ["a"]


# ---------------------------------------------------------------- producers


def test_the_next_instance_fences_the_one_before_and_drops_its_transaction(rig: Rig) -> None:
    first = rig.begun()
    rig.send(first, "a")
    second = rig.begun()
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    for action in (
        lambda: rig.own.end(first, commit=True),
        lambda: rig.own.add_partitions(first, [("t", 0)]),
        lambda: rig.own.add_group(first, "g"),
        lambda: rig.send(first, "b"),
    ):
        assert refusal(action) is TransactionRefusal.PRODUCER_FENCED
    rig.send(second, "c")
    rig.own.end(second, commit=True)
    assert rig.read() == ["c"]


@pytest.mark.parametrize("way", ["closed", "dropped", "killed"])
def test_an_epoch_that_was_given_away_is_never_given_again(one: Rig, way: Any) -> None:
    first = one.begun()
    if way == "closed":
        one.reopened()
    else:
        disk = one.files.snapshot()
        one.reopened(disk.restart() if way == "killed" else disk.crash(way))
    second = one.begun()
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    assert refusal(one.own.end, first, commit=False) is TransactionRefusal.PRODUCER_FENCED


def test_where_epochs_are_used_up_another_producer_begins(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "EPOCH_MAX", 1)
    first = one.begun()
    assert one.begun().epoch == 1
    third = one.begun()
    assert (third.producer_id > first.producer_id, third.epoch) == (True, 0)
    mapping = TransactionRefusal.INVALID_PRODUCER_ID_MAPPING
    assert refusal(one.own.end, first, commit=True) is mapping
    one.send(third, "a")
    one.own.end(third, commit=True)
    assert one.read() == ["a"]


def test_a_producer_may_go_on_from_its_own_epoch_and_ask_twice(one: Rig) -> None:
    first = one.begun()
    own = (first.producer_id, first.epoch)
    for _ in range(2):
        assert one.own.init("x", MINUTE_MS, own) == Claim("x", first.producer_id, 1)
    assert refusal(one.own.init, "x", MINUTE_MS, (own[0], 7)) is TransactionRefusal.PRODUCER_FENCED
    assert one.own.init("new", MINUTE_MS, own).epoch == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * MINUTE_MS + 1])
def test_a_timeout_out_of_range_is_refused(one: Rig, timeout_ms: int) -> None:
    expected = TransactionRefusal.INVALID_TRANSACTION_TIMEOUT
    assert refusal(one.own.init, "x", timeout_ms) is expected
    assert one.own.counts().ids == 0


def test_an_id_that_is_not_known_has_no_producer(one: Rig) -> None:
    mapping = TransactionRefusal.INVALID_PRODUCER_ID_MAPPING
    assert refusal(one.own.end, Claim("nobody", 0, 0), commit=True) is mapping
    for name in ("", "x" * 1025, "\ud800"):
        assert refusal(one.own.init, name, 1000) is TransactionRefusal.INVALID_REQUEST


# ---------------------------------------------------------------- offsets


def test_offsets_count_with_the_commit_and_are_pending_before_it(rig: Rig) -> None:
    claim = rig.begun()
    for commit in (False, True):
        rig.own.add_group(claim, "g")
        rig.own.stage_offsets(claim, "g", [Committed("t", 1, 5, 3, "note")])
        assert rig.own.pending("g") == {("t", 1)}
        assert rig.own.pending("h") == set()
        assert rig.store.committed_offsets("g") == []
        rig.own.end(claim, commit=commit)
        assert rig.own.pending("g") == set()
    rig.reopened()
    assert rig.store.committed_offsets("g") == [Committed("t", 1, 5, 3, "note")]


def test_offsets_of_a_group_that_was_not_added_are_refused(one: Rig) -> None:
    claim = one.begun()
    one.own.add_partitions(claim, [("t", 0)])
    found = refusal(one.own.stage_offsets, claim, "g", [Committed("t", 0, 1)])
    assert found is TransactionRefusal.INVALID_TXN_STATE


def test_offsets_belong_to_the_life_of_the_topic_in_which_they_were_sent(one: Rig) -> None:
    claim = one.begun()
    one.own.add_group(claim, "g")
    one.own.stage_offsets(claim, "g", [Committed("t", 0, 5)])
    one.store.delete_topic("t")
    one.store.create_topic("t")
    one.own.end(claim, commit=True)
    assert one.store.committed_offsets("g") == []


# ---------------------------------------------------------------- time and bounds


def test_a_transaction_that_times_out_is_dropped_and_must_be_aborted(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.clock.now_ms += MINUTE_MS - 1
    one.store.maintain()
    assert one.own.counts().open == 1
    one.clock.now_ms += 1
    one.store.maintain()
    assert (one.own.counts().open, one.own.counts().staged_bytes) == (0, 0)
    state = TransactionRefusal.INVALID_TXN_STATE
    assert refusal(one.send, claim, "b") is state
    assert refusal(one.own.end, claim, commit=True) is state
    one.own.end(claim, commit=False)
    one.send(claim, "c")
    one.own.end(claim, commit=True)
    assert one.read() == ["c"]


def test_an_open_transaction_does_not_go_on_after_a_restart(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.reopened()
    assert (
        refusal(one.own.add_partitions, claim, [("t", 1)]) is TransactionRefusal.INVALID_TXN_STATE
    )
    one.own.end(claim, commit=False)
    one.send(claim, "b")
    one.own.end(claim, commit=True)
    assert one.read() == ["b"]


def test_an_id_that_is_idle_for_long_is_forgotten_for_good(one: Rig) -> None:
    first = one.begun()
    one.clock.now_ms += transactions.EXPIRATION_MS
    one.store.maintain()
    assert one.own.counts().ids == 1
    one.clock.now_ms += 1
    one.store.maintain()
    assert one.own.counts().ids == 0
    one.reopened()
    assert one.own.counts().ids == 0
    assert one.begun().producer_id > first.producer_id


def test_ids_transactions_and_partitions_are_bounded(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDS_MAX", "PARTITIONS_MAX"):
        monkeypatch.setattr(transactions, name, 2)
    monkeypatch.setattr(transactions, "OPEN_MAX", 1)
    first, second = one.begun("a"), one.begun("b")
    with pytest.raises(InvalidRequest, match="2 transactional ids"):
        one.begun("c")
    with pytest.raises(InvalidRequest, match="2 partitions"):
        one.own.add_partitions(first, [("t", number) for number in range(3)])
    found = refusal(one.own.add_group, second, "g")
    assert found is TransactionRefusal.CONCURRENT_TRANSACTIONS
    for group in ("g", "h"):
        one.own.add_group(first, group)
    with pytest.raises(InvalidRequest, match="2 groups"):
        one.own.add_group(first, "i")


def test_what_open_transactions_hold_is_bounded(one: Rig) -> None:
    one.own.staged_bytes_max = lambda: 1000
    first, second = one.begun("a"), one.begun("b")
    one.send(first, "x" * 500)
    one.sent.clear()
    with pytest.raises(Busy, match="as much as"):
        one.send(second, "y" * 500)
    assert refusal(one.send, second, "y" * 900) is TransactionRefusal.RECORD_LIST_TOO_LARGE
    one.own.end(first, commit=True)
    one.send(second, "y" * 500)
    one.own.end(second, commit=True)
    assert len(one.read()) == 2


def test_groups_and_offsets_of_open_transactions_count_as_well(one: Rig) -> None:
    one.own.staged_bytes_max = lambda: 5000
    claim = one.begun()
    one.own.add_group(claim, "g")
    with pytest.raises(Busy):
        one.own.stage_offsets(claim, "g", [Committed("t", 0, 1, -1, "n" * 4096)] * 2)
    one.own.stage_offsets(claim, "g", [Committed("t", 0, 1, -1, "n" * 4000)])
    with pytest.raises(Busy):
        one.own.add_group(claim, "h" * 1000)
    one.own.end(claim, commit=True)
    assert one.own._staged_bytes == 0
    one.own.add_group(claim, "h" * 1000)


def test_memory_of_all_together_is_bounded_by_spilling(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "TOTAL_MEMORY_BYTES_MAX", 1500)
    for name in ("a", "b", "c"):
        one.send(one.begun(name), "x" * 600)
    assert len(one.names()) == 2
    assert one.own._memory_bytes <= 1500


def test_an_id_that_is_at_work_is_told_to_come_again(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "PATIENCE_S", 0.001)
    claim = one.begun()
    with one.own._ids["x"].lock:
        one.store.maintain()
        found = refusal(one.own.end, claim, commit=True)
    assert found is TransactionRefusal.CONCURRENT_TRANSACTIONS


# ---------------------------------------------------------------- failures


def test_a_batch_that_a_full_disk_refused_is_not_kept(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "MEMORY_BYTES_MAX", 200)
    claim = one.begun()
    one.send(claim, "a")
    one.files.fail("write_at", error=errno.ENOSPC, written=0.9)
    with pytest.raises(StorageFull):
        one.send(claim, *("b" * 100 for _ in range(10)))
    one.send(claim, "c")
    one.own.end(claim, commit=True)
    assert one.read() == ["a", "c"]


@pytest.mark.parametrize("written", [0.0, 0.5])
def test_a_full_disk_leaves_the_transaction_open(one: Rig, written: float) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.own.add_group(claim, "g")
    one.own.stage_offsets(claim, "g", [Committed("t", 0, 1)])
    one.files.fail("write_at", error=errno.ENOSPC, written=written)
    with pytest.raises(StorageFull):
        one.own.end(claim, commit=True)
    assert one.own.counts().open == 1
    one.own.end(claim, commit=True)
    assert one.read() == ["a"]
    assert len(one.store.committed_offsets("g")) == 1


def test_a_failed_sync_stops_all_commits_until_the_store_is_opened_again(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.files.fail("sync", error=errno.EIO)
    with pytest.raises(Poisoned):
        one.own.end(claim, commit=True)
    with pytest.raises(Poisoned):
        one.begun("another")
    assert "transactions" in one.store.failures()
    one.reopened()
    assert (one.read(), one.store.failures()) == ([], {})
    assert refusal(one.own.end, claim, commit=True) is TransactionRefusal.INVALID_TXN_STATE


def test_what_is_decided_is_tried_again_until_it_is_stored(
    one: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.send(claim, "b", partition=1)
    refuse_partition_one(monkeypatch, one)
    waits = TransactionRefusal.COORDINATOR_LOAD_IN_PROGRESS
    with caplog.at_level(logging.WARNING):
        assert refusal(one.own.end, claim, commit=True) is waits
    assert "waits to be stored" in caplog.text
    assert (one.read(0), one.read(1)) == (["a"], [])
    assert one.own.counts().decided == 1
    busy = TransactionRefusal.CONCURRENT_TRANSACTIONS
    assert refusal(one.begun) is busy
    assert refusal(one.own.add_partitions, claim, [("t", 0)]) is busy
    monkeypatch.undo()
    one.store.maintain()
    assert (one.read(0), one.read(1)) == (["a"], ["b"])
    one.own.end(claim, commit=True)
    assert (one.own.counts().decided, one.names()) == (0, [])


def test_what_is_decided_and_waits_is_stored_at_the_next_opening(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.send(claim, "b", partition=1)
    one.own.add_group(claim, "g")
    one.own.stage_offsets(claim, "g", [Committed("t", 0, 7)])
    refuse_partition_one(monkeypatch, one)
    assert refusal(one.own.end, claim, commit=True)
    assert one.own.pending("g") == {("t", 0)}
    monkeypatch.undo()
    one.reopened()
    assert (one.read(0), one.read(1)) == (["a"], ["b"])
    assert [each.offset for each in one.store.committed_offsets("g")] == [7]
    assert [event.kind for event in one.store.recovery_report.events] == ["rebuilt"]
    one.own.end(claim, commit=True)


def refuse_partition_one(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    real = rig.own._appends.store

    def store(target: Any, *given: Any) -> None:
        if target.place.partition == 1:
            raise StorageFull("no room")
        real(target, *given)

    monkeypatch.setattr(rig.own._appends, "store", store)


def test_an_opening_that_cannot_store_what_is_decided_still_opens(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = one.begun()
    one.send(claim, "b", partition=1)
    refuse_partition_one(monkeypatch, one)
    assert refusal(one.own.end, claim, commit=True)
    monkeypatch.undo()

    def refuse(*_: Any) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(transactions.DecidedAppends, "store", refuse)
    one.reopened()
    (event,) = one.store.recovery_report.events
    assert "waits to be stored" in event.why
    assert one.own._ids["x"].at.state is State.DECIDED
    monkeypatch.undo()
    one.store.maintain()
    assert one.read(1) == ["b"]


def test_records_of_a_topic_that_was_deleted_are_dropped_with_a_line_in_the_log(
    one: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    claim = one.begun()
    one.store.create_topic("gone")
    one.send(claim, "a")
    one.send(claim, "b", topic="gone")
    one.store.delete_topic("gone")
    one.store.create_topic("gone")
    with caplog.at_level(logging.WARNING):
        one.own.end(claim, commit=True)
    assert "topic 'gone' was deleted" in caplog.text
    assert (one.read(), one.read(topic="gone")) == (["a"], [])


def test_a_decided_file_that_is_damaged_is_set_aside_and_reported(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = one.begun()
    one.send(claim, "b", partition=1)
    refuse_partition_one(monkeypatch, one)
    assert refusal(one.own.end, claim, commit=True)
    monkeypatch.undo()
    (name,) = one.names()
    one.store.close()
    data = bytearray(one.files.read(f"{FOLDER}/{name}"))
    data[-1] ^= 1
    one.files.replace(f"{FOLDER}/{name}", bytes(data))
    one.store = one.opened()
    (event,) = one.store.recovery_report.events
    assert (event.kind, one.names(), one.read(1)) == ("quarantined", [], [])
    assert one.files.exists(event.kept_in)


def test_where_the_journal_is_damaged_before_sound_entries_producers_begin_again(one: Rig) -> None:
    first = one.begun("a")
    one.begun("b")
    path = "/srv/data/groups/offsets.log"
    one.store.close()
    data = bytearray(one.files.read(path))
    data[70] ^= 1
    one.files.replace(path, bytes(data))
    one.store = one.opened()
    mapping = TransactionRefusal.INVALID_PRODUCER_ID_MAPPING
    for name in ("a", "b"):
        assert refusal(one.own.end, Claim(name, first.producer_id, 0), commit=True) is mapping
    assert one.begun("a").producer_id > first.producer_id + 1


def test_a_closed_store_takes_no_transactions(one: Rig) -> None:
    claim = one.begun()
    one.send(claim, "a")
    one.store.close()
    with pytest.raises(Closed):
        one.own.end(claim, commit=True)
    with pytest.raises(LaminaError):
        one.begun("y")
