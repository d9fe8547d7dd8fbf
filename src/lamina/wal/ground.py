"""What the write-ahead log works with: files, clock, settings, and where everything lies.

wal/[shard-NN/]{CURRENT, wal-<n>.log}      shard 0 of one shard has no directory of its own
segments/<topic_id hex>/seg-<first>.{data,idx}
<cold.dir>/{broker.id, <topic_id hex>/seg-<first>.{data,idx}}
meta/{snapshot-<n>.bin, cold.json}
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

from lamina.config import WalSettings
from lamina.log.data_directory import DataDirectory
from lamina.storage import machine, paths
from lamina.wal import cold_recall

SHARDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Ground(DataDirectory):
    """A data directory as the write-ahead log sees it: with its settings."""

    settings: WalSettings = field(default_factory=WalSettings)

    @classmethod
    def of(cls, home: DataDirectory, settings: WalSettings) -> Ground:
        """Makes the write-ahead log's view of a data directory."""
        return cls(home.files, home.data, home.now_ms, home.steady_ms, home.spares, settings)

    def recalling(self, *, writes: bool) -> Ground:
        """Returns the same with the cold directory that is remembered, where none is named."""
        settings = cold_recall.recalled(self.files, self.data, self.settings, writes=writes)
        return self if settings is self.settings else replace(self, settings=settings)

    @property
    def shard_count(self) -> int:
        """How many shards new frames are spread over."""
        return self.settings.shards or min(machine.processors(), SHARDS_MAX)

    @property
    def meta(self) -> str:
        """The directory of the snapshots."""
        return paths.join(self.data, paths.META)

    def shard_directory(self, shard: int) -> str:
        """The directory that a shard writes to, as many shards as there are now."""
        root = paths.join(self.data, paths.WAL)
        return root if self.shard_count == 1 else paths.join(root, paths.shard_directory(shard))

    def shard_directories(self) -> list[tuple[int, str]]:
        """Returns (shard, directory) of every directory that may hold WAL files."""
        root = paths.join(self.data, paths.WAL)
        found = [(0, root)]
        for name in self.files.list(root):
            shard = paths.shard_number(name)
            if shard is not None:
                found.append((shard, paths.join(root, name)))
        return found

    def hot(self, topic_id: int) -> str:
        """The directory of a topic's segments."""
        name = paths.wal_topic_directory(topic_id)
        return paths.join(self.data, paths.SEGMENTS, name)

    def cold(self, topic_id: int) -> str | None:
        """The directory of a topic's segments that moved away, if there is a place for such."""
        root = self.cold_root
        return None if root is None else paths.join(root, paths.wal_topic_directory(topic_id))

    @property
    def cold_root(self) -> str | None:
        """The directory that segments move to, if any; `ownership` checks that it is ours."""
        named = self.settings.cold_directory
        return paths.absolute(named) if named else None

    def set_aside(self, path: str, data: bytes, position: int) -> str:
        """Keeps a copy of bytes under `quarantine/`, durably, before anything happens to them."""
        folder = paths.join(self.data, paths.QUARANTINE, paths.WAL)
        self.files.make_directory(folder)
        kept = paths.join(folder, f"{_flat(self.data, path)}.{position}.{zlib.crc32(data):08x}")
        if not self.files.exists(kept):
            self.files.replace(kept, data)
        return kept

    def quarantine(self, path: str) -> str:
        """Moves a file away under `quarantine/`, durably."""
        folder = paths.join(self.data, paths.QUARANTINE, paths.WAL)
        self.files.make_directory(folder)
        target = paths.join(folder, _flat(self.data, path))
        number = 0
        while self.files.exists(target):
            number += 1
            target = paths.join(folder, f"{_flat(self.data, path)}.{number}")
        self.files.rename(path, target)
        # The new name first: a crash in between may leave two names of the file, never none.
        self.files.sync_directory(folder)
        self.files.sync_directory(paths.parent(path))
        return target


def _flat(root: str, path: str) -> str:
    return paths.relative(path, root).replace("..", "").replace(paths.SEPARATOR, "-").lstrip("-")
