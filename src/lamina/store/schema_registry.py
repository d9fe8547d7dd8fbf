"""The schema registry of a store: reads the records of `_schemas` into a book, and appends changes.

    a change ─ `changing` is held ─ book caught up ─ decided ─ appended, durable ─ topic's file

A typed topic and the subject `<topic>-value` are one thing. A schema that is given to the topic is
registered under the subject, which is where its id comes from; a schema that is registered under
the subject is the topic's next version, where it has columns. Readers of records need the topic's
own file only, wherever they run.

Rules.
1. A registration is durable before it is answered, and before a topic's file names its id.
2. Every read first applies the records that were appended since; others may write them, too.
3. Schemas of topics that are older than the registry are in the book, and are written to the topic
   with the next change.
4. If a topic's file could not be updated, the next registration under its subject does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from lamina.errors import CorruptData, InvalidRequest, NewerFormat, typed_errors
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.typed import avro_text
from lamina.records import KEPT_COLUMNS
from lamina.store.lookup import Lookup
from lamina.store.reads import Reads
from lamina.subjects import changes, entries, languages
from lamina.subjects.book import LEVEL, Book
from lamina.subjects.entries import TOPIC, VALUE, Entry, LevelSet, Registered, Schema

if TYPE_CHECKING:
    from lamina.formats.documents.topic_schemas import TopicSchemas

SETTINGS = {"retention.ms": -1, "retention.bytes": -1}
SHIPPING_S = 30.0
"""How long a change waits until a cluster's window holds it."""
ARCHIVED = {"remote.storage.enable": "true", "segment.ms": 60_000, "archive.delay.ms": 0}
"""In a store with an archive, what is registered goes there within minutes."""
_Made = TypeVar("_Made")


class Typed(Protocol):
    """What the registry needs of typed topics."""

    def follow(self, about: TopicFile, book: Book) -> None:
        """Adds versions of the topic's subject to its file that are not there yet."""


class Home(Protocol):
    """What the registry needs of the store that it is part of."""

    topic_changes: Any
    """Creates and alters topics, one change at a time."""

    @property
    def tier(self) -> Any:
        """The part that looks after the archive; None without one."""

    @property
    def seat(self) -> Any:
        """The store's hold on a cluster; None without one."""

    def append(self, topic: str, records: pa.RecordBatch, *, acks: Any) -> Any:
        """Appends records."""

    def create_topic(self, name: str, *, config: Mapping[str, Any], exist_ok: bool) -> None:
        """Creates a topic."""


class RegistryReads:
    """The registry of a read-only store."""

    _writes = False
    """Whether no other process can change the topics' schemas."""

    def __init__(
        self, lookup: Lookup[Any], reads: Reads, kept: Callable[[TopicFile], TopicSchemas | None]
    ) -> None:
        self._lookup = lookup
        self._reads = reads
        self._kept = kept
        self._looking = threading.Lock()
        self._book = Book()
        self._about: TopicFile | None = None
        self._next_offset = -1
        self._unwritten: list[Entry] = []
        """The schemas of topics that are older than the registry."""

    @typed_errors("reading the schema registry")
    def book(self) -> Book:
        """Returns the state of the registry as it is now."""
        with self._looking:
            about = self._topic()
            end = 0 if about is None else self._reads.latest_offset(TOPIC, 0)
            is_known = about == self._about and 0 <= self._next_offset <= end
            if not is_known or (about is None and not (self._writes and self._unwritten)):
                self._begin(about, end)
            elif end > self._next_offset:
                self._book = self._with_records(self._book.copy(), self._next_offset, end)
                self._next_offset = end
            return self._book

    def _topic(self) -> TopicFile | None:
        """Returns the topic of the registry; one that cannot be it is somebody else's."""
        about = self._lookup.topics().get(TOPIC)
        return about if about is not None and _is_fit(about) else None

    def _begin(self, about: TopicFile | None, end: int) -> None:
        book, known_before = self._with_records(Book(), 0, end), list[Entry]()
        for topic in sorted(self._lookup.topics().values(), key=lambda each: each.name):
            known_before += self._known_before(book, topic)
        self._about, self._book, self._next_offset = about, book, end
        self._unwritten = known_before

    def _with_records(self, book: Book, first: int, end: int) -> Book:
        """Returns a book to which the records between two offsets were applied."""
        first = max(first, self._reads.earliest_offset(TOPIC, 0)) if end else 0
        for batch in self._reads.scan(TOPIC, 0, first, end=end) if first < end else ():
            keys, values = batch.column("key"), batch.column("value")
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                entry = entries.decode(key, value)
                if entry is not None:
                    book.apply(entry)
        return book

    def _known_before(self, book: Book, about: TopicFile) -> list[Entry]:
        """Registers the schemas of a topic that is older than the registry; returns how."""
        try:
            known = self._kept(about)
        except (CorruptData, NewerFormat):
            return []  # its own calls say so
        if known is None:
            return []
        subject, made = f"{about.name}{VALUE}", list[Entry]()
        for each in known.schemas:
            if book.was_given(each.id) and _is_known(book, subject, each.id):
                continue
            schema = languages.schema_of(avro_text.parse(each.text), known.encoding)
            found = changes.adopting(book, subject, schema, each.id)
            for entry in found[0] if found is not None else ():
                book.apply(entry)
                made.append(entry)
        if made and known.compatibility not in ("", LEVEL):
            made.append(LevelSet(subject, known.compatibility))
            book.apply(made[-1])
        return made


class SchemaRegistry(RegistryReads):
    """The registry of a store that may write."""

    _writes = True

    def __init__(
        self,
        lookup: Lookup[Any],
        reads: Reads,
        kept: Callable[[TopicFile], TopicSchemas | None],
        *,
        typed: Typed,
        home: Home,
    ) -> None:
        super().__init__(lookup, reads, kept)
        self._typed = typed
        self._changing = home.topic_changes.changing
        self._home = home

    def prepare(self) -> None:
        """Makes the topic of the registry, if it is not there; not while topics are changed."""
        about = self._lookup.topics().get(TOPIC)
        if about is not None and not _is_fit(about):
            raise InvalidRequest(
                f"the schema registry needs a topic {TOPIC!r} of one partition, whose format keeps"
                f" keys; the one that is there is {about.format} with {about.partitions}"
            )
        if about is None:
            settings = {**SETTINGS, **({} if self._home.tier is None else ARCHIVED)}
            self._home.create_topic(TOPIC, config=settings, exist_ok=True)

    @typed_errors("changing the schema registry")
    def change(self, decide: Callable[[Book], tuple[Sequence[Entry], _Made]]) -> _Made:
        """Decides one change on the newest state, and makes it durable; returns the decision."""
        self.prepare()
        with self._changing:
            made, result = decide(self.book())
            self.write(made)
            for subject in {each.subject for each in made} | _named(result):
                self._follow(subject)
        self._ship()
        return result

    def _ship(self) -> None:
        """Waits until a cluster's window holds what is there: a successor must not give ids again.

        Whoever ships needs `changing`, so it is not held here.
        """
        seat = self._home.seat
        if seat is not None and self._next_offset > 0:
            partition = self._lookup.partition(TOPIC, 0)
            end = self._reads.latest_offset(TOPIC, 0)
            seat.shipper.wait_archived(partition, end, SHIPPING_S)

    def write(self, made: Sequence[Entry]) -> None:
        """Appends the decided entries. `changing` is held, and the topic exists."""
        pending = self._unwritten
        if not made:
            return
        rows = [entries.encode(each) for each in (*pending, *made)]
        keys, values = zip(*rows, strict=True)
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        batch = pa.RecordBatch.from_arrays(columns, ["key", "value"])
        self._home.append(TOPIC, batch, acks="all")
        with self._looking:
            self._unwritten = []

    def adopt(self, topic: str, schema: Schema, level: str) -> int:
        """Registers a topic's own schema and level, with `changing` held; returns its id.

        Where no client has used the registry yet, nothing is written: the topic's file says it all.
        """
        book, subject = self.book(), f"{topic}{VALUE}"
        adopted = changes.adopting(book, subject, schema)
        assert adopted is not None, "refused only with an id"
        made, version = adopted
        if level != book.levels.get(subject, LEVEL):
            made = [*made, LevelSet(subject, level)]
        if self.is_begun:
            self.write(made)
        else:
            self._remember(made)
        return version.id

    def adopt_level(self, topic: str, level: str) -> None:
        """Registers a topic's own level, with `changing` held."""
        subject = f"{topic}{VALUE}"
        if self.is_begun and level != self.book().levels.get(subject, LEVEL):
            self.write([LevelSet(subject, level)])

    @property
    def is_begun(self) -> bool:
        """Whether the registry's topic exists."""
        return self._topic() is not None

    def _remember(self, made: Sequence[Entry]) -> None:
        with self._looking:
            book = self._book.copy()
            for entry in made:
                book.apply(entry)
                self._unwritten.append(entry)
            self._book = book

    def _follow(self, subject: str) -> None:
        about = self._lookup.topics().get(subject.removesuffix(VALUE))
        if about is not None and subject.endswith(VALUE):
            self._typed.follow(about, self.book())


def _named(result: object) -> set[str]:
    return {result.subject} if isinstance(result, Registered) else set()


def _is_known(book: Book, subject: str, schema_id: int) -> bool:
    """Whether a version was there, or is, or was deleted for good."""
    places = book.places(schema_id)
    return not places or any(each.subject == subject for each in places)


def _is_fit(about: TopicFile) -> bool:
    return "key" in KEPT_COLUMNS.get(about.format, ()) and about.partitions == 1
