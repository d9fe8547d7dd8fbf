"""Remembers which groups a store has, apart from their own files (`group_roster`).

Rules.
1. A group is listed after its files are there, with the next flush: a crash before costs nothing.
2. A group that is deleted is off the list, durably, before its files go: it must not come back.
3. Losing the list loses nothing while the files are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from lamina.api import RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import group_roster
from lamina.formats.documents.group_roster import Listed
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from lamina.store.opening import Boot


def listed_groups(
    boot: Boot, topics: Mapping[str, TopicFile], report: RecoveryReport
) -> dict[tuple[str, str], Listed]:
    """Reads the groups of topics that are there, by (topic, group)."""
    path = boot.path(paths.ROSTER)
    if not boot.files.exists(path):
        return {}
    try:
        found = group_roster.decode(boot.files.read(path))
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        report.add("rebuilt", path, f"the list of groups is damaged: {error.problem}")
        return {}
    return {
        (each.topic, each.group): each
        for each in found
        if each.topic in topics and topics[each.topic].epoch == each.epoch
    }


class Roster:
    """The list, kept up to date by the store that writes."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._written: bytes | None = None

    def save(self, groups: Iterable[Listed]) -> None:
        """Writes the list if it says anything new; on a full disk, some other time."""
        data = group_roster.encode(groups)
        if data == self._written or (self._written is None and data == _EMPTY):
            return
        with contextlib.suppress(OSError):
            self._boot.files.replace(self._boot.path(paths.ROSTER), data)
            self._written = data

    def leave_out(self, groups: Iterable[Listed]) -> None:
        """Writes a list that is short of a group, or removes it, which needs no space."""
        path = self._boot.path(paths.ROSTER)
        self._written = None
        self.save(groups)
        if self._written is None and self._boot.files.exists(path):
            self._boot.files.remove(path)
            self._boot.files.sync_directory(self._boot.path(paths.META))


_EMPTY = group_roster.encode(())
