"""The small files that are decoded at once; the JSON documents among them are known by name.

Rule: nothing here needs a kernel, so that a document is shown without importing the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lamina.errors import CorruptData
from lamina.formats.documents import (
    archive_location,
    archive_manifest,
    archive_proof,
    broker_id,
    checkpoint,
    cold_location,
    group_copy,
    group_roster,
    group_settings,
    lease_file,
    ledger,
    producer_ids,
    tail_boundary,
    tombstone,
    topic_file,
    topic_schemas,
)
from lamina.formats.wal import current
from lamina.inspect.findings import FileKind, Finding, Named, Row, described, named
from lamina.inspect.render import render_value
from lamina.storage import paths

if TYPE_CHECKING:
    from typing_extensions import Buffer


def _no_contradiction(_: Any, __: Named) -> str | None:
    return None


@dataclass
class WholeFile:
    """A small file that is decoded at once: JSON documents, manifests, snapshots.

    `contradiction` returns what in a value contradicts the file's name, or None. `checksum` is
    what a sound file has: "ok" for one under a checksum, "none" for one without.
    """

    name: str
    decode: Callable[[bytes], Any]
    contradiction: Callable[[Any, Named], str | None] = _no_contradiction
    checksum: Literal["ok", "none"] = "none"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Decodes strictly; what is not exact is damage."""
        try:
            problem = self.contradiction(self.decode(bytes(data)), named(path))
        except CorruptData as error:
            yield Finding(path, error.position, described(error))
        else:
            if problem:
                yield Finding(path, 0, problem)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the one value that the file holds."""
        size = memoryview(data).nbytes
        try:
            value = render_value(self.decode(bytes(data)))
        except CorruptData as error:
            yield Finding(path, error.position, described(error)).as_row()
            return
        fields = value if isinstance(value, dict) else {"value": value}
        yield {"position": 0, "size": size, "checksum": self.checksum, **fields}


def _other_group(value: group_copy.GroupCopy, facts: Named) -> str | None:
    owner = value.owner
    theirs = owner.topic, owner.partition, owner.group
    if _copied_group(facts.path) == theirs:
        return None
    return f"the copy is of group {owner.group!r} of {owner.topic}/{owner.partition}"


def _copied_group(path: str) -> tuple[str, int, str] | None:
    """Parses the path of an archive's copy of a group: (topic, partition, group)."""
    return paths.archived_group("/".join(path.split(paths.SEPARATOR)[-5:]))


def _other_segment(value: tombstone.Tomb, facts: Named) -> str | None:
    if value.base_offset is None or facts.number in (None, value.base_offset):
        return None
    return f"the tombstone is of segment {value.base_offset}, its name says another"


_BY_PATH: dict[str, FileKind] = {
    paths.BROKER_ID: WholeFile("broker identity", broker_id.decode),
    paths.CHECKPOINT: WholeFile("checkpoint", checkpoint.decode),
    paths.ARCHIVE_LOCATION: WholeFile("archive location", archive_location.decode, checksum="ok"),
    paths.ARCHIVE_PROOF: WholeFile("proof of an object store", archive_proof.decode, checksum="ok"),
    paths.LEASE: WholeFile("lease of a cluster", lease_file.decode, checksum="ok"),
    paths.TAIL_BOUNDARY: WholeFile("boundary of tails", tail_boundary.decode, checksum="ok"),
    paths.COLD_LOCATION: WholeFile(
        "cold directory's location", cold_location.decode, checksum="ok"
    ),
    paths.TOPIC_SETTINGS: WholeFile("topic settings", topic_file.decode, checksum="ok"),
    paths.TOPIC_SCHEMAS: WholeFile("topic schemas", topic_schemas.decode, checksum="ok"),
    paths.ARCHIVE_MANIFEST: WholeFile("list of objects", archive_manifest.decode, checksum="ok"),
    paths.LEDGER: WholeFile("ledger of gaps", ledger.decode, checksum="ok"),
    paths.ROSTER: WholeFile("list of groups", group_roster.decode, checksum="ok"),
    paths.PRODUCER_IDS: WholeFile("ids of producers", producer_ids.decode, checksum="ok"),
    paths.GROUP_SETTINGS: WholeFile("settings of groups", group_settings.decode, checksum="ok"),
    paths.CURRENT: WholeFile("current WAL file", current.decode),
}
_BY_NAME = {paths.base_name(path): kind for path, kind in _BY_PATH.items()}
_GROUP_COPY = WholeFile("copy of a group", group_copy.decode, _other_group, checksum="ok")
_TOMBSTONE = WholeFile("tombstone", tombstone.decode, _other_segment)


def recognise(path: str) -> FileKind | None:
    """Returns which document this is by its name; None for any other file."""
    name = paths.base_name(path)
    if _copied_group(paths.absolute(path)) is not None:
        return _GROUP_COPY
    segment = paths.segment_file(name)
    return _TOMBSTONE if segment and segment.suffix == "tomb" else _BY_NAME.get(name)


def every_kind() -> tuple[FileKind, ...]:
    """Returns every kind of document."""
    return (*_BY_PATH.values(), _GROUP_COPY, _TOMBSTONE)
