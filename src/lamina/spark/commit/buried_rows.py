"""Dead letters of a query: records that their schema does not fit, stored before the rest is read.

A worker has no store. On a server it appends to `<topic>.dlq` as anybody does. For a directory it
stages the records as a task of the sink does, and whoever has the store open carries that out
(`handover`): a small transaction, numbered for each partition of the source, one after the other.

Rules.
1. Dead letters are durable before the query gets the good records of the same batch.
2. A task that is run again buries again, as a second `store.read` does: topic, partition and offset
   in the headers tell a repeat.
3. A directory's topic of dead letters must be there before the query starts: only whoever has the
   store open creates topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lamina.errors import InvalidRequest
from lamina.formats.documents.sink_transaction import Transaction, decode_state
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.groups.dead_letters import SUFFIX, bury
from lamina.records import Records
from lamina.spark.access import ServerAccess, Where
from lamina.spark.commit.sink_target import DirectoryTarget
from lamina.spark.commit.staging import Stager, Staging
from lamina.spark.logs.local import boot_of
from lamina.storage import paths
from lamina.storage.files import LocalFiles, wall_clock_ms

TIMEOUT_MS = 60_000
FORMAT = "keratin"


@dataclass(frozen=True, slots=True)
class Burial:
    """Where the dead letters of a query go; can be pickled, and buries on a worker."""

    place: ServerAccess | DirectoryTarget
    source: TopicFile | None = None
    letters: TopicFile | None = None
    """The topic and that of its dead letters; of a directory."""

    def bury(self, topic: str, partition: int, batch: pa.RecordBatch, reasons: list[str]) -> None:
        """Stores records as dead letters, each with what is wrong with it."""
        if isinstance(self.place, ServerAccess):
            with self.place.connect() as store:
                bury(store, (topic, partition), batch, reasons)
            return
        assert self.source is not None
        assert self.letters is not None
        host = _StagedLetters(self.place, self.source, self.letters, partition)
        bury(host, (topic, partition), batch, reasons)


def burial_of(where: Where, topic: str) -> Burial:
    """Returns where a query's dead letters go; raises InvalidRequest if they have no place."""
    if where.server is not None:
        return Burial(where.server)
    if where.path is None:
        raise InvalidRequest(
            "errors=deadletter writes, and an archive is only read: use null or raise"
        )
    target = DirectoryTarget(boot_of(where.path).data)
    topics = target.topics()
    letters = topics.get(topic + SUFFIX)
    if letters is None or letters.format != FORMAT:
        raise InvalidRequest(
            f"errors=deadletter needs a topic {topic + SUFFIX!r} of format {FORMAT}: create it,"
            " with the partitions of its source"
        )
    return Burial(target, topics[topic], letters)


@dataclass(frozen=True, slots=True)
class _StagedLetters:
    """What `dead_letters` needs of a store, for a directory that another process may have open."""

    target: DirectoryTarget
    source: TopicFile
    letters: TopicFile
    partition: int

    def topics(self) -> list[str]:
        """Returns the topics that matter here."""
        return [self.source.name, self.letters.name]

    def format_of(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it has."""
        about = self.letters if topic == self.letters.name else self.source
        return about.format, about.partitions

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = FORMAT,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises: the topic was there when the query began."""
        raise InvalidRequest(f"topic {name!r} must be created before the query starts")

    def append(self, topic: str, records: Records | bytes, *, partition: int | None = None) -> None:
        """Stages records and has them stored, durably."""
        assert isinstance(records, pa.RecordBatch)
        number = pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows)
        rows = records.append_column("partition", number)
        name = xxh3_of(self.source.name.encode())
        application = f"dead-letters-{name:016x}-{self.partition}"
        turn = self._last(application)
        stored = False
        while not stored:  # somebody else may have taken the number: then the next one
            turn += 1
            place = Staging(LocalFiles(), self.target.data, application, turn)
            stager = Stager(
                place, {topic: self.letters}, topic=topic, now_ms=wall_clock_ms(), turn=0
            )
            transaction = Transaction(application, turn, "", (stager.stage([rows]),))
            stored = self.target.publish(transaction, place.files, TIMEOUT_MS)

    def _last(self, application: str) -> int:
        folder = paths.join(self.target.data, paths.sink_directory(application))
        path, files = paths.join(folder, paths.SINK_STATE), LocalFiles()
        return decode_state(files.read(path)).number if files.exists(path) else 0
