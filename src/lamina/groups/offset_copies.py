"""The archive's copies of committed offsets, and what becomes of them when they are read back.

A copy is a journal of committed offsets (`formats.committed_offsets`) that holds one partition's
entries only, the last of each group. The time in its header is when the topic was created: with the
epoch in the entries it distinguishes this topic from another one of its name.

Derived: the journal is the truth. A copy is used where that is lost or damaged, and by a restore.

Rules.
1. A copy holds no offset beyond what was archived when it was made: those records are the same in
   every log that is restored from this archive. A group that was further reads some of them again.
2. A sound entry of the journal, also one that forgets an offset, wins over a copy.
3. A damaged copy costs the entries that are damaged, and that is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lamina.config import TopicSettings
from lamina.errors import CorruptData, NewerFormat
from lamina.formats import committed_offsets as journal
from lamina.formats.committed_offsets import Entry, Kind
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths


class Copied(NamedTuple):
    """What a copy holds, and what is wrong with it."""

    entries: tuple[Entry, ...] = ()
    problem: str = ""
    is_known: bool = True
    """Whether the archive has answered."""


class OffsetCopies:
    """Makes the copies; remembers the last ones, so that what does not change costs nothing."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], tuple[tuple[TopicFile, list[Entry]], bytes]] = {}

    def of(
        self, about: TopicFile, partition: int, archived_end: int, entries: Mapping[str, Entry]
    ) -> bytes:
        """Returns the copy of a partition's entries, by group; empty where there are none."""
        if about.created_ms == UNKNOWN_MS:
            return b""
        least = 1 if about.format == "wal" else 0
        kept = [
            each._replace(offset=max(least, min(each.offset, archived_end)))
            for _, each in sorted(entries.items())
            if each.topic_epoch == about.epoch
        ]
        if not kept:
            return b""
        made_of = about, kept
        last = self._made.get((about.name, partition))
        if last is None or last[0] != made_of:
            data = journal.encode_header(about.created_ms) + journal.encode(kept)
            last = self._made[about.name, partition] = made_of, data
        return last[1]


def entries_of(data: bytes, about: TopicFile, partition: int) -> Copied:
    """Returns what a copy holds of this very topic; nothing of one of a newer version."""
    found, damaged = [], 0
    try:
        created_ms = journal.decode_header(data)
        for piece in journal.walk(data):
            if piece.entry is None:
                damaged += 1
            else:
                found.append(piece.entry)
    except NewerFormat:
        return Copied(problem="the archive's copy was written by a newer version")
    except CorruptData as error:
        return Copied(problem=f"the archive's copy is damaged ({error.problem})")
    problem = f"{damaged} stretches of the archive's copy are damaged" if damaged else ""
    if created_ms != about.created_ms:
        return Copied(problem=problem)
    here = Kind.COMMIT, about.name, partition, about.epoch
    entries = [
        each for each in found if (each.kind, each.topic, each.partition, each.topic_epoch) == here
    ]
    return Copied(tuple(entries), problem)


def copied(boot: DataDirectory, about: TopicFile, partition: int) -> Copied:
    """Returns what the archive's copy of a partition holds, if there is one."""
    spare = boot.spares.offsets(about.name, partition)
    if spare is None:
        return Copied(is_known=False)
    if spare.data is None:
        return Copied(problem=spare.problem, is_known=not spare.problem)
    return entries_of(spare.data, about, partition)


def all_copied(boot: DataDirectory, topics: Iterable[TopicFile]) -> Iterator[Copied]:
    """Yields the copies of all archived topics, up to the first that does not answer."""
    for about in topics:
        if TopicSettings.parse(about.settings).is_archived:
            for number in range(about.partitions):
                found = copied(boot, about, number)
                yield found
                if not found.is_known:
                    return


def bring_back(boot: DataDirectory, entries: Iterable[Entry]) -> None:
    """Adds restored entries to a directory's journal, behind all that it holds.

    They count as new as of the restore: bringing back an old archive brings back its positions.
    Damage in the journal stays where it is, for the next opening to find and to report.
    """
    now_ms, path = boot.steady(), boot.path(paths.COMMITTED_OFFSETS)
    data = journal.encode(each._replace(time_ms=now_ms) for each in entries)
    if not data:
        return
    if not boot.files.exists(path):
        boot.files.make_directory(boot.path(paths.GROUPS))
        boot.files.replace(path, journal.encode_header(boot.now_ms()) + data)
        return
    try:
        ends = [piece.end for piece in journal.walk(boot.files.read(path))]
    except NewerFormat as error:
        raise error.at_path(path) from error
    with contextlib.closing(boot.files.open(path)) as file:
        file.write_at(max(ends, default=journal.FILE_HEADER_BYTES), data)
        file.sync()
