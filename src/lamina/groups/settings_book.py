"""The settings of share groups, by name: durable before they are answered.

Rules.
1. A setting that this version does not know, or would refuse, counts as not set, and the others
   count: the file may be of another version, and that must not make a group unusable. What is not
   known stays in the file.
2. A damaged file is set aside and reported when the store is opened: where a group begins is
   among the settings, so somebody has to know that they are gone. One flipped bit is flipped back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lamina.api import RecoveryReport
from lamina.config import Settings, setting
from lamina.errors import CorruptData, InvalidRequest, NewerFormat, typed_errors
from lamina.formats.documents import group_settings
from lamina.formats.documents.flips import one_flip_away
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths

GROUPS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings(Settings):
    """What can be set for a share group by its name, as Kafka's tools do."""

    kind: ClassVar[str] = "group setting"

    start: str = setting(
        "latest",
        "share.auto.offset.reset",
        "earliest or latest",
        "where the group begins in a topic in which it has not read yet",
        allowed=("earliest", "latest"),
    )
    heartbeat_ms: int = setting(
        5_000,
        "share.heartbeat.interval.ms",
        "ms",
        "how often members tell that they are there",
        allowed=(100, 3_600_000),
    )
    session_ms: int = setting(
        45_000,
        "share.session.timeout.ms",
        "ms",
        "a member that was silent for so long is gone, and what it holds is released",
        allowed=(1_000, 3_600_000),
    )


class SettingsBook:
    """The settings of all share groups of a store."""

    def __init__(self, boot: DataDirectory) -> None:
        self._boot = boot
        self._path = boot.path(paths.GROUP_SETTINGS)
        self._changing = threading.Lock()
        self._known: dict[str, dict[str, Any]] | None = None
        self._shipped: tuple[dict[str, dict[str, Any]], bytes] = ({}, b"")

    def of(self, group: str) -> ShareGroupSettings:
        """Returns the settings of a group, those that were never set as they are by default."""
        found = ShareGroupSettings()
        for key, value in self._all().get(group, {}).items():
            with contextlib.suppress(InvalidRequest):
                found = found.updated({key: value})
        return found

    def as_shipped(self) -> bytes:
        """Returns the file's bytes for another machine; none if no group has settings."""
        known = self._all()
        if known is not self._shipped[0]:
            self._shipped = known, group_settings.encode(known)
        return self._shipped[1] if known else b""

    @typed_errors("setting what a group does")
    def alter(self, group: str, changes: Mapping[str, Any]) -> None:
        """Changes settings of a group; raises InvalidRequest for what it cannot have."""
        with self._changing:
            default = ShareGroupSettings().as_dict()
            wanted = self.of(group).updated(changes).as_dict()
            kept = {key: value for key, value in wanted.items() if value != default[key]}
            former = self._all().get(group, {})
            kept |= {key: former[key] for key in former.keys() - default.keys()}
            others = {name: each for name, each in self._all().items() if name != group}
            if kept and len(others) >= GROUPS_MAX:
                raise InvalidRequest(f"{GROUPS_MAX} groups have settings of their own already")
            known = others | ({group: kept} if kept else {})
            self._boot.files.replace(self._path, group_settings.encode(known))
            self._known = known

    def recover(self, report: RecoveryReport) -> None:
        """Reads the file when the store is opened; a damaged one is kept aside and reported."""
        try:
            self._known = self._read()
        except NewerFormat:
            raise
        except CorruptData:
            data = self._boot.files.read(self._path)
            kept = self._boot.place("", 0).set_aside(self._path, data, 0)
            mended = one_flip_away(bytes(data), group_settings.decode)
            if mended is not None:
                report.add("rebuilt", self._path, "one bit of it was flipped", kept_in=kept)
            else:
                why = (
                    "what was set of share groups cannot be read: until it is set again their"
                    " settings are the default ones, and new topics of a group are read from the"
                    " end"
                )
                report.add("quarantined", self._path, why, kept_in=kept)
            self._boot.files.replace(self._path, group_settings.encode(mended or {}))
            self._known = mended or {}

    def _all(self) -> dict[str, dict[str, Any]]:
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            return group_settings.decode(self._boot.files.read(self._path))
        except NewerFormat as error:
            raise error.at_path(self._path) from error
        except FileNotFoundError:
            return {}
