"""A program that survives errors, and remembers what it was told; for disks whose calls fail.

One fixed workload that makes calls of every kind. What fails must fail with an error of ours; what
was acknowledged must be readable then, after opening again on the healed disk, and after power was
lost instead; what was refused for lack of space must not be there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lamina.api import Acks, ProducerStamp
from lamina.errors import LaminaError, StorageFull, UnknownTopic
from lamina.store.store import Store
from lamina_torture.disk import Choice
from lamina_torture.promises import GROUP
from lamina_torture.rows import demand
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles

TOPIC = "orders"


def first_offset(format_name: str) -> int:
    """Returns the offset of a topic's first record."""
    return int(format_name == "wal")


def read(store: Store, topic: str = TOPIC) -> dict[int, bytes]:
    """Returns every durable record by its offset, from the earliest on."""
    found: dict[int, bytes] = {}
    for batch in store.scan(topic):
        offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        found.update(zip(offsets, values, strict=True))
    return found


@dataclass(repr=False)
class Client:
    """Uses a store as a program would that survives errors, and remembers what it was told."""

    files: SimulatedFiles
    format_name: str
    store: Store | None = None
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    handed_in: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    errors: list[LaminaError] = field(default_factory=list)
    trimmed_below: int = 0
    committed: int = 0
    committing: int = 0
    opens_max: int = 2
    """How often it tries to open: a disk that fails for ever lets nobody in."""
    careful: bool = False
    """Whether it looks at everything after each error."""

    def attempt(self, action: Callable[[Store], Any]) -> Any:
        """Does something; an error that is not ours, or an OSError, gets out."""
        if self.store is None:
            return None
        try:
            return action(self.store)
        except LaminaError as error:
            self._note(error)
            return error

    def _note(self, error: LaminaError) -> None:
        self.errors.append(error)
        if self.careful and self.store is not None and not self.store._lookup.is_closed:
            self.check(self.store)

    def open(self) -> None:
        """Opens the store, and again when that failed."""
        for _ in range(self.opens_max):
            try:
                self.store = open_store(self.files)
                return
            except LaminaError as error:
                self._note(error)

    def close(self) -> None:
        """Closes the store."""
        self.attempt(lambda store: store.close())
        self.store = None

    def create(self) -> None:
        """Creates the topic, and again when that failed."""

        def create(store: Store) -> None:
            config = {"segment.bytes": 1024}
            store.create_topic(TOPIC, format=self.format_name, config=config)

        if isinstance(self.attempt(create), LaminaError):
            self.attempt(create)

    def append(self, sizes: list[int], acks: Acks = "all", sequence: int | None = None) -> None:
        """Appends; what is acknowledged it remembers, what is refused, too."""
        values = [
            f"{len(self.handed_in) + row} ".encode().ljust(size, b"x")
            for row, size in enumerate(sizes)
        ]
        self.handed_in += values
        idempotent = sequence is not None
        stamp = ProducerStamp(7, 0, sequence) if idempotent else None  # type: ignore[arg-type]
        answer = self.attempt(
            lambda store: store.append(TOPIC, values, partition=0, acks=acks, producer=stamp)
        )
        if isinstance(answer, StorageFull):
            self.refused += values
            self.lose_power()
        if acks == "all" and answer is not None and not isinstance(answer, LaminaError):
            self.acknowledged |= dict(enumerate(values, answer.base_offset))

    def lose_power(self) -> None:
        """Looks at what would be there if power failed now."""
        disk = self.files.snapshot()
        choices: tuple[Choice, ...] = ("dropped", "kept", len(self.handed_in))
        for choice in choices:
            with open_store(disk.crash(choice)) as store:
                self.check(store)

    def look(self) -> None:
        """Reads everything; a read that fails says so."""

        def look(store: Store) -> None:
            if TOPIC in store.topics():
                read(store)

        self.attempt(look)

    def commit(self, until: int) -> None:
        """Commits the group's position."""
        self.committing = max(self.committing, until)
        answer = self.attempt(lambda store: store.group(TOPIC, GROUP).commit(until))
        if answer is not None and not isinstance(answer, LaminaError):
            self.committed = max(self.committed, until)

    def trim(self, before: int) -> None:
        """Trims."""
        self.trimmed_below = max(self.trimmed_below, before)
        self.attempt(lambda store: store.trim(TOPIC, 0, before))

    def check(self, store: Store) -> None:
        """Holds a store against what this client was told; a read may fail, typed, once."""
        try:
            found = read(store)
        except UnknownTopic:
            demand(not self.acknowledged, "I1", "the topic is gone")
            return
        self._check_records(store, found)
        if (TOPIC, GROUP) in store.groups():
            (part,) = store.describe_group(TOPIC, GROUP).partitions
            at, most = part.committed, max(self.committing, store.earliest_offset(TOPIC))
            demand(self.committed <= at <= most, "I6", f"the group is at {at}")
        else:
            demand(self.committed == 0, "I6", "the group is gone")

    def _check_records(self, store: Store, found: dict[int, bytes]) -> None:
        earliest = store.earliest_offset(TOPIC)
        expected = {at: value for at, value in self.acknowledged.items() if at >= earliest}
        lost = [at for at, value in expected.items() if found.get(at) != value]
        demand(not lost, "I1", f"{lost[:5]} were acknowledged and are lost")
        first = first_offset(self.format_name)
        demand(earliest <= max(first, self.trimmed_below), "I8", f"begins at {earliest}")
        counts = Counter(found.values())
        demand(set(counts) <= set(self.handed_in), "I2", "read, but never appended")
        demand(max(counts.values(), default=1) == 1, "I3", "appended once, read twice")
        back = set(found.values()) & set(self.refused)
        demand(not back, "I2", f"refused, and yet there: {sorted(back)[:2]}")
        lost_gaps = [gap for gap in store.gaps(TOPIC) if gap.reason == "lost"]
        demand(not lost_gaps, "I4", f"said to be lost: {lost_gaps}")


def use(client: Client) -> None:
    """The workload: it makes calls of every kind."""
    client.open()
    client.create()
    client.append([100, 50])
    client.append([30], acks=1)
    client.append([40, 40], sequence=0)
    client.look()
    client.commit(first_offset(client.format_name) + 2)
    client.append([900])
    client.attempt(lambda store: store.maintain())
    client.append([300] * 7, sequence=2)
    client.trim(6)
    client.attempt(lambda store: store.create_topic("other", format=client.format_name))
    client.attempt(lambda store: store.append("other", [b"o"]))
    client.attempt(lambda store: store.alter_topic("other", {"retention.bytes": 4096}))
    client.attempt(lambda store: store.delete_topic("other"))
    client.append([20])
    client.look()
    client.close()
    client.open()
    client.append([60])
    client.append([1200])
    client.commit(first_offset(client.format_name) + 7)


def reopen(client: Client, turn: int) -> None:
    """Checks the healed disk: after a new start of the process, and after power loss."""
    disk = client.files.snapshot()
    choices: tuple[Choice, ...] = ("dropped", "dropped", "kept", turn)
    for again in (disk.restart(), disk.crash(choices[turn % 4])):
        with open_store(again) as store:
            client.check(store)
            if TOPIC not in store.topics():
                continue
            seen = read(store)
            lost = again.snapshot().crash("dropped")
            end = store.latest_offset(TOPIC)
            more = store.append(TOPIC, [b"more"], partition=0)
            demand(more.base_offset == end, "I3", f"appended at {more.base_offset}, not {end}")
            used = read(store)
            demand(len(used) == len(seen) + 1, "I12", "an append after the error is not there")
        files, expected = ((lost, seen), (again, used))[turn % 2]
        with open_store(files) as store:
            demand(read(store) == expected, "I5", "served, and gone later")


def no_failed_sync_is_repeated(files: SimulatedFiles) -> None:
    """A failed sync is never tried again on the same descriptor."""
    failed = set()
    for step in files.history:
        if step.kind == "sync" and step.inode in failed:
            demand(False, "I12", f"{step.path} was synced again after a failure")
        if step.kind == "open":
            failed.discard(step.inode)  # through recovery, which writes it again
        if step.kind == "sync" and step.failed:
            failed.add(step.inode)
