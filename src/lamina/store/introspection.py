"""What a store tells of itself to those who look rather than read: layers, writers, sinks.

Rule: everything here is answered from memory and small files; nothing scans records.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lamina.api import (
    Block,
    Layer,
    PartitionInfo,
    RawRecord,
    SinkFacts,
    Window,
    WriterFacts,
)
from lamina.errors import CorruptData, typed_errors
from lamina.formats.documents.sink_transaction import decode_state
from lamina.log.commit import Writer
from lamina.log.sealed import Archivable
from lamina.storage import paths
from lamina.store import layers as strata
from lamina.store.opening import Boot
from lamina.store.reads import StoreReader

if TYPE_CHECKING:
    from lamina.wal.engine import WalEngine

_SINK_STATE = "state.json"


class InsightAccess(StoreReader):
    """What can be seen of a store that writes."""

    _boot: Boot
    _partitions: dict[tuple[str, int], Archivable]
    _wal: WalEngine | None

    def layers(self, topic: str, partition: int = 0) -> list[Layer]:
        """Returns the layers of a partition, oldest first: gone, cold, sealed, active."""
        return strata.layers_of(self._partition(topic, partition))

    @typed_errors("looking at blocks")
    def blocks(
        self, topic: str, partition: int, base_offset: int, window: Window = Window()
    ) -> list[Block]:
        """Returns the blocks of the layer that begins at an offset, neighbours joined to fit."""
        return strata.blocks_of(self._partition(topic, partition), base_offset, window)

    @typed_errors("looking at a record")
    def raw_record(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """Returns the bytes of a record in its file; None where no local segment holds it."""
        return strata.raw_record(self._partition(topic, partition), offset)

    def extents(self) -> dict[str, list[PartitionInfo]]:
        """Returns where the partitions of every topic begin and end, and what they hold."""
        self._require_open()
        found: dict[str, list[PartitionInfo]] = {}
        for (topic, _), partition in sorted(self._partitions.items()):
            found.setdefault(topic, []).append(partition.info())
        return found

    def writers(self) -> list[WriterFacts]:
        """Returns every writer: one per partition, and one per shard of the write-ahead log."""
        self._require_open()
        found = []
        shards = self._wal.writers if self._wal is not None else []
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
        self._require_open()
        files, folder = self._boot.files, self._boot.path(paths.SINK)
        found = []
        for name in files.list(folder) if files.exists(folder) else []:
            path = os.path.join(folder, name, _SINK_STATE)
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
