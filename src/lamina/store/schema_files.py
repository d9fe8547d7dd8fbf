"""The file of a typed topic's schemas in a data directory, and what takes its place.

A damaged file is mended: by the one bit that was flipped, or else by the copy in the archive. So is
one that is gone while the archive has a copy of it.

Rules.
1. Bytes that are replaced, and are not a sound file of this very topic, are in `quarantine/` first.
2. Only a store that writes mends the file; one that reads uses the copy and changes nothing.
3. A file of a newer version is refused, and stays.
4. The archive is asked about a file that is not there once per topic, if it answers: topics without
   schemas have none.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from lamina.api import RecoveryReport
from lamina.config import TopicSettings
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import topic_schemas
from lamina.formats.documents.flips import one_flip_away
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.formats.documents.topic_schemas import TopicSchemas
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable
from lamina.store.opening import Boot


class _Found(NamedTuple):
    """A file as it is: its bytes, what they say of this topic, and what is wrong with them."""

    raw: bytes | None
    document: TopicSchemas | None = None
    damage: CorruptData | None = None


class SchemaFiles:
    """The files of all topics. With a report, which is one of a store that writes, mends them."""

    def __init__(self, boot: Boot, report: RecoveryReport | None = None) -> None:
        self._boot = boot
        self._report = report
        self._none: set[tuple[str, int]] = set()
        """Topics that have no copy of a file that is not here, by name and time of creation."""
        self._replacing = threading.Lock()
        self.replaced = 0
        """How often a file was replaced here: who copies them looks again when it grows."""

    def document(self, about: TopicFile) -> TopicSchemas | None:
        """Returns what is written of a topic's schemas; None where nothing is.

        Raises CorruptData for a damaged file without a sound copy, NewerFormat for a newer one.
        """
        found = self._found(about)
        if found.document is not None or (found.damage is None and self._has_none(about)):
            return found.document
        with self._replacing:
            found = self._found(about)  # somebody may have mended or replaced it meanwhile
            if found.document is None and (spare := self._spare(about, found)) is not None:
                self._mend(about, found, spare)
                return spare
        if found.document is None and found.damage is not None:
            raise found.damage
        return found.document

    def replace(self, about: TopicFile, made: TopicSchemas) -> None:
        """Writes the file, durably; what is there and not this topic's is kept aside."""
        with self._replacing:
            self._write(about, self._found(about), made)

    def recover(self, about: TopicFile) -> None:
        """Mends the file of a topic that is being opened, if it is damaged; reports what it did."""
        try:
            if self._found(about).damage is not None:
                self.document(about)
        except NewerFormat:
            return  # which typed calls raise; the records can be read
        except CorruptData as error:
            why = (
                f"it cannot be read ({error.problem}), and there is no sound copy: the topic has no"
                " columns; put it back from a backup, or move it away and call set_schema"
            )
            if self._report is not None:
                self._report.add("note", self._path(about), why)

    def own_bytes(self, about: TopicFile) -> bytes | None:
        """Returns the file as it is, for a copy; None unless it is sound, and of this topic."""
        try:
            found = self._found(about)
        except NewerFormat:
            return None
        return found.raw if found.document is not None else None

    def _path(self, about: TopicFile) -> str:
        return paths.join(self._boot.catalog.directory(about.name), paths.TOPIC_SCHEMAS)

    def _found(self, about: TopicFile) -> _Found:
        path = self._path(about)
        try:
            raw = bytes(self._boot.files.read(path))
        except FileNotFoundError:
            return _Found(None)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return _Found(None, damage=_undelivered(path, error))
        try:
            document = topic_schemas.decode(raw)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            return _Found(raw, damage=error.at_path(path))
        return _Found(raw, document if document.is_of(about) else None)

    def _has_none(self, about: TopicFile) -> bool:
        """Returns whether it is known that no copy can be there."""
        if about.created_ms == UNKNOWN_MS or (about.name, about.created_ms) in self._none:
            return True
        return not TopicSettings.parse(about.settings).is_archived

    def _spare(self, about: TopicFile, found: _Found) -> TopicSchemas | None:
        """Returns what a file says that is damaged or gone, by its bits or by the copy of it."""
        if found.damage is not None and found.raw is not None:
            mended = one_flip_away(found.raw, topic_schemas.decode)
            if mended is not None and mended.is_of(about):
                return mended
        if self._has_none(about):
            return None
        copy = self._boot.spares.schemas(about.name)
        if copy.document is not None and copy.document.is_of(about):
            return copy.document
        if not copy.problem:
            self._none.add((about.name, about.created_ms))
        return None

    def _mend(self, about: TopicFile, found: _Found, spare: TopicSchemas) -> None:
        if self._report is None or (found.raw is None and found.damage is not None):
            return  # what the device may deliver another time can say more than the copy
        kept = self._write(about, found, spare)
        wrong = "it was gone"
        if found.raw is not None:
            wrong = f"it could not be read ({found.damage or 'it is of another topic'})"
        self._report.add("rebuilt", self._path(about), f"{wrong}; a copy was found", kept_in=kept)

    def _write(self, about: TopicFile, found: _Found, made: TopicSchemas) -> str | None:
        """Replaces the file; returns where the bytes are that were not this topic's."""
        kept, path = None, self._path(about)
        if found.raw is not None and found.document is None:
            kept = self._boot.place(about.name, 0).set_aside(path, found.raw, 0)
        self._boot.files.replace(path, topic_schemas.encode(made))
        self.replaced += 1
        return kept


def _undelivered(path: str, error: OSError) -> CorruptData:
    return CorruptData(
        "the device does not deliver the file", path=path, expected="its bytes", found=str(error)
    )
