"""Remembers which groups a store has, apart from their own files (`group_roster`).

Rules.
1. A group is listed after its files are there, with the next flush: a crash before costs nothing.
2. A group that is deleted is off the list, durably, before its files go: it must not come back.
3. A group that is reset has another life in the list, durably, before its files change: what is
   kept elsewhere of the life before must not undo the reset.
4. Losing the list loses nothing while the files are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lamina.api import RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import group_roster
from lamina.formats.documents.flips import one_flip_away
from lamina.formats.documents.group_roster import Listed
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable


class Known(NamedTuple):
    """The groups of topics that are there, by (topic, group).

    `is_sound` is False where the list is missing or damaged: then there may be others.
    """

    groups: dict[tuple[str, str], Listed]
    is_sound: bool


def listed_groups(
    boot: DataDirectory, topics: Mapping[str, TopicFile], report: RecoveryReport
) -> Known:
    """Reads the list."""
    path = boot.path(paths.ROSTER)
    if not boot.files.exists(path):
        return Known({}, is_sound=False)
    try:
        raw = boot.files.read(path)
        found = group_roster.decode(raw)
    except OSError as error:
        if not is_unreadable(error):
            raise
        report.add("rebuilt", path, f"the list of groups cannot be read: {error}")
        return Known({}, is_sound=False)
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        report.add("rebuilt", path, f"the list of groups is damaged: {error.problem}")
        mended = one_flip_away(raw, group_roster.decode)
        if mended is None:
            return Known({}, is_sound=False)
        found = mended
    listed = {
        (each.topic, each.group): each
        for each in found
        if each.topic in topics and topics[each.topic].epoch == each.epoch
    }
    return Known(listed, is_sound=True)


class Roster:
    """The list, kept up to date by the store that writes."""

    def __init__(self, boot: DataDirectory) -> None:
        self._boot = boot
        self._written: bytes | None = None
        self.keys: frozenset[tuple[str, str]] = frozenset()
        """The groups (topic, group) that the file names, durably."""

    def save(self, groups: Iterable[Listed]) -> None:
        """Writes the list if it has changed; on a full disk, some other time."""
        listed = list(groups)
        if listed or self._written is not None:
            with contextlib.suppress(OSError):
                self.write(listed)

    def write(self, groups: Iterable[Listed]) -> None:
        """Writes the list if it has changed; raises OSError if that fails."""
        listed = list(groups)
        data = group_roster.encode(listed)
        if data != self._written:
            self._boot.files.replace(self._boot.path(paths.ROSTER), data)
            self._written = data
            self.keys = frozenset((each.topic, each.group) for each in listed)

    def correct(self, groups: Iterable[Listed]) -> None:
        """Writes a list in place of one that is not true any more, or removes that.

        To remove it needs no space. Raises OSError if neither can be done.
        """
        self._written = None
        self.keys = frozenset()
        try:
            self.write(groups)
        except OSError:
            path = self._boot.path(paths.ROSTER)
            if self._boot.files.exists(path):
                self._boot.files.remove(path)
                self._boot.files.sync_directory(self._boot.path(paths.META))
