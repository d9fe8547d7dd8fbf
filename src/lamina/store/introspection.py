"""Introspection for the console and metrics: layers, writer statistics, sink state.

Rule: answers come from memory and small files; nothing here scans records.
"""

from __future__ import annotations

from lamina.api import (
    Block,
    Layer,
    Layers,
    PartitionInfo,
    RawRecord,
    SinkFacts,
    Window,
    WriterFacts,
)
from lamina.errors import CorruptData, typed_errors
from lamina.formats.documents.sink_transaction import decode_state
from lamina.log.commit import Writer
from lamina.storage import paths
from lamina.store import picture
from lamina.store.open_topics import OpenTopics
from lamina.store.opening import Boot
from lamina.store.write_ahead import WriteAhead


class Introspection:
    """What can be seen of a store that writes."""

    def __init__(self, boot: Boot, open_topics: OpenTopics, write_ahead: WriteAhead) -> None:
        self._boot = boot
        self._lookup = open_topics.lookup
        self._partitions = open_topics.partitions
        self._write_ahead = write_ahead

    def layers(self, topic: str, partition: int = 0) -> list[Layer]:
        """Returns the layers of a partition, oldest first: gone, cold, sealed, active."""
        found = picture.layers_of(self._lookup.partition(topic, partition))
        return Layers(found, f"{topic}/{partition}")

    @typed_errors("looking at blocks")
    def blocks(
        self, topic: str, partition: int, base_offset: int, window: Window = Window()
    ) -> list[Block]:
        """Returns the blocks of the layer that begins at an offset, neighbours joined to fit."""
        return picture.blocks_of(self._lookup.partition(topic, partition), base_offset, window)

    @typed_errors("looking at a record")
    def raw_record(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """Returns the bytes of a record in its file; None where no local segment holds it."""
        return picture.raw_record(self._lookup.partition(topic, partition), offset)

    def extents(self) -> dict[str, list[PartitionInfo]]:
        """Returns where the partitions of every topic begin and end, and what they hold."""
        self._lookup.require_open()
        found: dict[str, list[PartitionInfo]] = {}
        for (topic, _), partition in sorted(self._partitions.items()):
            found.setdefault(topic, []).append(partition.info())
        return found

    def writers(self) -> list[WriterFacts]:
        """Returns every writer: one per partition, and one per shard of the write-ahead log."""
        self._lookup.require_open()
        found = []
        wal = self._write_ahead.engine
        shards = wal.writers if wal is not None else []
        ends = {id(writer): (0, 0) for writer in shards}
        for (topic, number), partition in sorted(self._partitions.items()):
            written, durable = partition.end_offset("written"), partition.end_offset("durable")
            if id(partition.writer) in ends:
                before = ends[id(partition.writer)]
                ends[id(partition.writer)] = (before[0] + written, before[1] + durable)
            else:
                name = f"{topic}-{number}"
                found.append(_facts(partition.writer, name, topic, (written, durable)))
        for shard, writer in enumerate(shards):
            name = f"write-ahead log, shard {shard}"
            found.append(_facts(writer, name, None, ends[id(writer)]))
        return found

    def sinks(self) -> list[SinkFacts]:
        """Returns every application that has stored a transaction through Spark's sink."""
        self._lookup.require_open()
        files, folder = self._boot.files, self._boot.path(paths.SINK)
        found = []
        for name in files.list(folder) if files.exists(folder) else []:
            path = paths.join(folder, name, paths.SINK_STATE)
            if paths.sink_application(name) is None or not files.exists(path):
                continue
            try:
                state = decode_state(files.read(path))
            except (CorruptData, FileNotFoundError):  # the sink itself reports what is damaged
                continue
            stored_ms = files.modified_ms(path)
            found.append(SinkFacts(state.application, state.number, state.query, stored_ms))
        return sorted(found, key=lambda each: each.application)


def _facts(writer: Writer, name: str, topic: str | None, ends: tuple[int, int]) -> WriterFacts:
    return WriterFacts(
        name, topic, writer.depth, *ends, writer.pulse.copy(), str(writer.failure or "")
    )
