"""What the write-ahead log stands on: files, clock, settings, and where everything lies.

wal/[shard-NN/]{CURRENT, wal-<n>.log}      shard 0 of one shard has no directory of its own
segments/<topic_id hex>/seg-<first>.{data,idx}
<cold.dir>/{broker.id, <topic_id hex>/seg-<first>.{data,idx}}
meta/snapshot-<n>.bin
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from lamina.config import TopicSettings, WalSettings
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.directory import Place
from lamina.log.spares import NO_SPARES, Copies, Spares
from lamina.storage import paths
from lamina.storage.files import Files

SHARDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Ground:
    """The surroundings of a store's write-ahead log, with its clock and one that never jumps."""

    files: Files
    data: str
    now_ms: Callable[[], int]
    settings: WalSettings = field(default_factory=WalSettings)
    steady_ms: Callable[[], int] | None = None
    spares: Spares = NO_SPARES

    def place(self, about: TopicFile, partition: int) -> Place:
        """Returns the surroundings of a topic's partition."""
        is_archived = TopicSettings.parse(about.settings).is_archived
        clocks = (self.now_ms, self.steady_ms)
        copies = Copies(self.spares, about, partition) if is_archived else None
        return Place(self.files, self.data, about.name, partition, *clocks, copies)

    def steady(self) -> int:
        """Returns the time by which spans are measured: no jump of the clock changes them."""
        return self.now_ms() if self.steady_ms is None else self.steady_ms()

    @property
    def shard_count(self) -> int:
        """How many shards new frames are spread over."""
        return self.settings.shards or min(os.cpu_count() or 1, SHARDS_MAX)

    @property
    def meta(self) -> str:
        """The directory of the snapshots."""
        return os.path.join(self.data, paths.META)

    def shard_directory(self, shard: int) -> str:
        """The directory that a shard writes to, as many shards as there are now."""
        root = os.path.join(self.data, paths.WAL)
        return root if self.shard_count == 1 else os.path.join(root, paths.shard_directory(shard))

    def shard_directories(self) -> list[tuple[int, str]]:
        """Returns (shard, directory) of every directory that may hold WAL files."""
        root = os.path.join(self.data, paths.WAL)
        found = [(0, root)]
        for name in self.files.list(root):
            shard = paths.shard_number(name)
            if shard is not None:
                found.append((shard, os.path.join(root, name)))
        return found

    def hot(self, topic_id: int) -> str:
        """The directory of a topic's segments."""
        name = paths.wal_topic_directory(topic_id)
        return os.path.join(self.data, paths.SEGMENTS, name)

    def cold(self, topic_id: int) -> str | None:
        """The directory of a topic's segments that moved away, if there is a place for such."""
        root = self.cold_root
        return None if root is None else os.path.join(root, paths.wal_topic_directory(topic_id))

    @property
    def cold_root(self) -> str | None:
        """The directory that segments move to, if there is one; `ownership` says whose it is."""
        named = self.settings.cold_directory
        return os.path.abspath(named) if named else None

    def set_aside(self, path: str, data: bytes, position: int) -> str:
        """Keeps a copy of bytes under `quarantine/`, durably, before anything happens to them."""
        folder = os.path.join(self.data, paths.QUARANTINE, paths.WAL)
        self.files.make_directory(folder)
        kept = os.path.join(folder, f"{_flat(self.data, path)}.{position}.{zlib.crc32(data):08x}")
        if not self.files.exists(kept):
            self.files.replace(kept, data)
        return kept

    def quarantine(self, path: str) -> str:
        """Moves a file away under `quarantine/`, durably."""
        folder = os.path.join(self.data, paths.QUARANTINE, paths.WAL)
        self.files.make_directory(folder)
        target = os.path.join(folder, _flat(self.data, path))
        number = 0
        while self.files.exists(target):
            number += 1
            target = os.path.join(folder, f"{_flat(self.data, path)}.{number}")
        self.files.rename(path, target)
        self.files.sync_directory(folder)
        self.files.sync_directory(os.path.dirname(path))
        return target


def _flat(root: str, path: str) -> str:
    return os.path.relpath(path, root).replace("..", "").replace(os.sep, "-").lstrip("-")
