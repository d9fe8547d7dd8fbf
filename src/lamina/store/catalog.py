"""The topics of a data directory: created, found, altered and deleted through `topic.json`.

Rules.
1. Writing `topic.json` is what creates a topic, after its directories; writing it with `deleted` is
   what deletes one, before its files. Either is one atomic replacement.
2. A deleted topic's `topic.json` stays: the epoch of a name only grows.
3. Nothing is removed because a `topic.json` is missing: the directories show what topic it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from lamina.api import RecoveryReport
from lamina.config import NO_LIMIT, WAL_ONLY_KEYS, TopicSettings
from lamina.errors import CorruptData, InvalidRequest, NewerFormat, TopicExists, UnknownTopic
from lamina.formats.documents import topic_file
from lamina.formats.documents.flips import one_flip_away
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.formats.log_format import CODECS
from lamina.log.directory import Place
from lamina.log.spares import NO_SPARES, Spares
from lamina.records import KEPT_COLUMNS
from lamina.storage import paths
from lamina.storage.files import Files

PARTITIONS_MAX = 10_000
FORMATS = (*CODECS, "wal")
Lost: TypeAlias = Callable[[set[str]], list[TopicFile]]
"""Returns the topics that are known from elsewhere, except those of some names."""


def check_settings(format_name: str, settings: Mapping[str, Any]) -> None:
    """Refuses unknown settings, and those that topics of another format have."""
    parsed = TopicSettings.parse(settings)
    if parsed.needs_keys and "key" not in KEPT_COLUMNS.get(format_name, ()):
        raise InvalidRequest(
            f"cleanup.policy {parsed.cleanup_policy} needs records with keys, which {format_name}"
            " topics do not keep; choose delete, or another format"
        )
    for key in settings:
        if key in WAL_ONLY_KEYS and format_name != "wal":
            raise InvalidRequest(f"{key} is a setting of wal topics; this one is {format_name}")


def settings_in_force(about: TopicFile) -> TopicSettings:
    """Returns the settings that a topic's partitions follow; `about` has them as they were set.

    They differ in what `cleanup.policy=compact` makes of retention, as in Kafka: nothing.
    """
    settings = TopicSettings.parse(about.settings)
    if settings.cleanup_policy != "compact":
        return settings
    return replace(settings, retention_ms=NO_LIMIT, retention_bytes=NO_LIMIT)


def check_new(name: str, partitions: int, format_name: str, settings: Mapping[str, Any]) -> None:
    """Refuses a topic that cannot be created, whatever else there is."""
    paths.topic_name(name)
    if format_name not in FORMATS:
        raise InvalidRequest(
            f"format {format_name!r} is not available; choose one of {', '.join(FORMATS)}"
        )
    check_settings(format_name, settings)
    _check_count(partitions)


def refuse_different(about: TopicFile, partitions: int, format_name: str) -> None:
    """Raises TopicExists for a topic that is not of this format with so many partitions."""
    pairs = (
        ("partitions", about.partitions, partitions),
        ("format", about.format, format_name),
    )
    unlike = [f"{what} {there}, not {asked}" for what, there, asked in pairs if there != asked]
    if unlike:
        difference = "; ".join(unlike)
        raise TopicExists(
            f"topic {about.name!r} exists already, and is another one than was asked for:"
            f" {difference}; ask for it as it is, choose another name, or delete it",
            topic=about.name,
            difference=difference,
        )


def check_growth(about: TopicFile, total: int) -> None:
    """Refuses a number of partitions that a topic cannot grow to."""
    _check_count(total)
    if total <= about.partitions:
        raise InvalidRequest(
            f"the number of partitions of topic {about.name!r} is {about.partitions} and can only"
            f" grow, not become {total}"
        )


def check_alteration(about: TopicFile, settings: Mapping[str, Any]) -> None:
    """Refuses settings that a topic cannot have beside those that it has."""
    check_settings(about.format, {**about.settings, **settings})


@dataclass(frozen=True, slots=True)
class Catalog:
    """The topics below a data directory."""

    files: Files
    data: str
    now_ms: Callable[[], int]
    spares: Spares = NO_SPARES

    def directory(self, name: str) -> str:
        """Returns a topic's directory."""
        return paths.join(self.data, paths.TOPICS, name)

    def load(self, report: RecoveryReport) -> dict[str, TopicFile]:
        """Reads every topic; finishes deletions that were cut short."""
        found = {}
        # A killed process may have made names that are not durable; topics are served from now on.
        if names := self._directories():
            self.files.sync_directory(paths.join(self.data, paths.TOPICS))
        for name in names:
            self.files.sync_directory(self.directory(name))
            about = self._read(name, report)
            if about is None:
                continue
            if about.deleted:
                if self._remove_contents(name):
                    path = self.directory(name)
                    report.add("deletion finished", path, "the topic was being deleted")
            else:
                found[name] = about
        return found

    def is_deleted(self, name: str) -> bool:
        """Returns whether a topic of the name was deleted, which its file says for good."""
        path = paths.join(self.directory(name), paths.TOPIC_SETTINGS)
        try:
            return topic_file.decode(self.files.read(path)).deleted
        except (FileNotFoundError, CorruptData):
            return False

    def _directories(self) -> list[str]:
        """The names below `topics/`; a stray file is not a topic."""
        names = self.files.list(paths.join(self.data, paths.TOPICS))
        return [name for name in names if self.files.is_directory(self.directory(name))]

    def peek(self, lost: Lost = lambda known: []) -> dict[str, TopicFile]:
        """Reads every topic without changing anything.

        `lost` is asked for a topic that neither its own file nor its other files describe any more:
        the write-ahead log knows the topics whose records it keeps.
        """
        found: dict[str, TopicFile] = {}
        silent = set()
        for name in self._directories():
            path = paths.join(self.directory(name), paths.TOPIC_SETTINGS)
            try:
                about = self._believed(topic_file.decode(self.files.read(path)))
            except NewerFormat as error:
                raise error.at_path(path) from error
            except (FileNotFoundError, CorruptData):
                guessed = self._spare(name) or self._guess(name)
                if guessed is None:
                    silent.add(name)
                    continue
                about = guessed
            if not about.deleted:
                found[name] = about
        for about in lost(set(found)) if silent else ():
            if about.name in silent:
                found.setdefault(about.name, about)
        return found

    def create(
        self,
        name: str,
        *,
        partitions: int,
        format_name: str,
        settings: Mapping[str, Any],
        claim: Callable[[TopicFile], TopicFile] = lambda about: about,
    ) -> TopicFile:
        """Creates a topic; its epoch is one more than that of a deleted one of the same name.

        `claim` is called before the topic exists and may add to what is written about it.
        """
        check_new(name, partitions, format_name, settings)
        old = self._read(name, RecoveryReport())
        if old is not None and not old.deleted:
            raise TopicExists(
                f"topic {name!r} exists already; use it (exist_ok=True does so where it is there),"
                " choose another name, or delete it",
                topic=name,
            )
        epoch = 1 if old is None else old.epoch + 1
        if old is not None:
            self._remove_contents(name)  # an error may have left some when it was deleted
        about = TopicFile(
            name, format_name, partitions, epoch, self.now_ms(), settings=dict(settings)
        )
        self.files.make_directory(self.directory(name))
        self._make_partitions(about, 0)
        # From the leaves up to the root, and `topic.json` last: it is what makes the topic exist.
        self._make_names_durable(name)
        self.files.sync_directory(self.data)
        about = claim(about)
        self._write(about)
        return about

    def _make_partitions(self, about: TopicFile, first: int) -> None:
        """Makes the directories of a topic's partitions from a number on; wal topics have none."""
        for partition in range(first, about.partitions if about.format in CODECS else first):
            folder = paths.join(self.directory(about.name), str(partition))
            self.files.make_directory(paths.join(folder, paths.SEGMENTS))
            self.files.sync_directory(folder)  # `topic.json` may only promise what is there

    def prepare_growth(self, about: TopicFile, total: int) -> TopicFile:
        """Makes room for more partitions; returns the topic as it will be (see `grow`).

        A crash after it leaves empty directories, which are ignored.
        """
        check_growth(about, total)
        grown = replace(about, partitions=total, topic_ids=[])
        self._make_partitions(grown, about.partitions)
        self._make_names_durable(about.name)
        return grown

    def grow(self, grown: TopicFile) -> None:
        """Records that a topic has more partitions: from now on they exist, all at once."""
        self._write(grown)

    def restore(self, about: TopicFile) -> bool:
        """Writes the file of a topic that has lost it; False if the name was deleted since."""
        path = paths.join(self.directory(about.name), paths.TOPIC_SETTINGS)
        try:
            known = topic_file.decode(self.files.read(path))
        except (FileNotFoundError, CorruptData):
            self.files.make_directory(self.directory(about.name))
            self._make_names_durable(about.name)
            self._write(about)
            return True
        return known == about

    def begin_restoring(self, about: TopicFile) -> None:
        """Marks a topic that is being brought back as deleted: cut off, it is nothing.

        Raises InvalidRequest where a newer topic of the name was deleted: an epoch only grows.
        """
        old = self._read(about.name, RecoveryReport())
        if old is not None and old.created_ms != about.created_ms and old.epoch >= about.epoch:
            raise InvalidRequest(
                f"{self.data} had a topic {about.name!r} of epoch {old.epoch}, the archive's is"
                f" {about.epoch}; restore into another directory"
            )
        self.files.make_directory(self.directory(about.name))
        self.mark_deleted(about)
        self._make_names_durable(about.name)
        self._remove_contents(about.name)

    def finish_restoring(self, about: TopicFile) -> None:
        """Makes a topic that was brought back exist."""
        # The document that makes the topic exist is last: behind it nothing may be missing.
        for partition in range(about.partitions):
            self.files.sync_directory(paths.join(self.directory(about.name), str(partition)))
        self._make_names_durable(about.name)
        self._write(about)

    def alter(self, about: TopicFile, settings: Mapping[str, Any]) -> TopicFile:
        """Changes settings of a topic; what is not named stays."""
        check_alteration(about, settings)
        altered = replace(about, settings={**about.settings, **settings})
        self._write(altered)
        return altered

    def mark_deleted(self, about: TopicFile) -> None:
        """Deletes a topic for good; its files are still there."""
        self._write(replace(about, deleted=True))

    def remove_deleted(self, about: TopicFile) -> None:
        """Removes the files of a deleted topic that nothing writes to any more."""
        self._remove_contents(about.name)

    def _make_names_durable(self, name: str) -> None:
        """Syncs the names of a topic's directory and files."""
        if self.files.is_directory(self.directory(name)):
            self.files.sync_directory(self.directory(name))
        self.files.sync_directory(paths.join(self.data, paths.TOPICS))

    def _write(self, about: TopicFile) -> None:
        path = paths.join(self.directory(about.name), paths.TOPIC_SETTINGS)
        self.files.replace(path, topic_file.encode(about))

    def _read(self, name: str, report: RecoveryReport) -> TopicFile | None:
        path = paths.join(self.directory(name), paths.TOPIC_SETTINGS)
        try:
            about: TopicFile | None = topic_file.decode(self.files.read(path))
            assert about is not None
            if (better := self._believed(about)) != about:
                report.add("rebuilt", path, "a sound copy was found of what had been guessed")
                self._write(better)
            return better
        except NewerFormat as error:
            raise error.at_path(path) from error
        except (FileNotFoundError, CorruptData) as error:
            kept = self._set_aside(name, path)
            about = self._spare(name)
            if about is not None:
                why = f"it could not be read ({error}); a copy was found"
                report.add("rebuilt", path, why, kept_in=kept)
                self._write(about)
                return about
            about = self._guess(name)
            if about is not None:
                why = f"it could not be read ({error}); format and partitions are from the files"
                report.add("rebuilt", path, why, kept_in=kept)
                self._write(about)
            elif kept is not None:
                why = f"it could not be read ({error}), and no file shows what the topic was"
                report.add("quarantined", path, f"{why}: it is not served", kept_in=kept)
            return about

    def _set_aside(self, name: str, path: str) -> str | None:
        """Keeps a copy of a damaged file, which may be somebody else's; None if there is none."""
        if not self.files.exists(path):
            return None
        place = Place(self.files, self.data, name, 0, self.now_ms)
        return place.set_aside(path, self.files.read(path), 0)

    def _spare(self, name: str) -> TopicFile | None:
        """Restores a damaged file: by flipping one bit back, or from a copy that fits the files."""
        path = paths.join(self.directory(name), paths.TOPIC_SETTINGS)
        if self.files.exists(path):
            found = one_flip_away(self.files.read(path), topic_file.decode)
            if found is not None and found.name == name:
                return found
        elif not self._has_contents(name):  # a creation that was cut off has no copy anywhere
            return None
        spare, guessed = self.spares.topic(name), self._guess(name)
        if spare is None or (guessed is not None and guessed.format != spare.format):
            return None
        return spare

    def _has_contents(self, name: str) -> bool:
        """Returns whether a topic's directory holds anything that an existing topic has."""
        folder = self.directory(name)
        ledgers = [paths.join(folder, each, paths.LEDGER) for each in self.files.list(folder)]
        return any(map(self.files.exists, ledgers)) or self._guess(name) is not None

    def _believed(self, about: TopicFile) -> TopicFile:
        """Returns a topic as it is, or as in a copy if it had only been guessed before."""
        return about if about.created_ms != UNKNOWN_MS else self._spare(about.name) or about

    def _guess(self, name: str) -> TopicFile | None:
        """Infers from a directory's files what topic it is; None if it holds no records."""
        folder = self.directory(name)
        numbers = [
            int(entry)
            for entry in self.files.list(folder)
            if entry.isascii()
            and entry.isdigit()
            and self.files.is_directory(paths.join(folder, entry, paths.SEGMENTS))
        ]
        logs = [
            paths.join(folder, str(number), paths.SEGMENTS, entry)
            for number in numbers
            for entry in self.files.list(paths.join(folder, str(number), paths.SEGMENTS))
            if (parsed := paths.segment_file(entry)) and parsed.suffix == "log"
        ]
        if not logs:
            return None
        format_name = "keratin" if any(map(self._is_keratin, logs)) else "frame"
        is_archived = any(self._has_archived(name, number) for number in numbers)
        settings = {"remote.storage.enable": True} if is_archived else {}
        return TopicFile(name, format_name, max(numbers) + 1, 1, UNKNOWN_MS, settings=settings)

    def _has_archived(self, name: str, number: int) -> bool:
        """Returns whether the ledger of a partition knows records that only an archive holds."""
        place = Place(self.files, self.data, name, number, self.now_ms)
        return bool(place.peek_ledger().archived())

    def _is_keratin(self, log: str) -> bool:
        """Returns whether a log is keratin's, by its header or else by the files beside it."""
        file = self.files.open_read_only(log)
        try:
            head = file.read_at(0, 4)
        finally:
            file.close()
        beside = paths.join(paths.parent(paths.parent(log)), paths.MANIFEST)
        times = log.removesuffix("log") + "tidx"
        return head == b"KLOG" or self.files.exists(beside) or self.files.exists(times)

    def _remove_contents(self, name: str) -> bool:
        """Removes a deleted topic's files, all but its `topic.json`; False if none were left."""
        removed = False
        for entry in self.files.list(self.directory(name)):
            if entry != paths.TOPIC_SETTINGS:
                self._remove_tree(paths.join(self.directory(name), entry))
                removed = True
        if removed:  # or files of the deleted topic return below the next one of its name
            self.files.sync_directory(self.directory(name))
        return removed

    def _remove_tree(self, path: str) -> None:
        if not self.files.is_directory(path):
            self.files.remove(path)
            return
        for entry in self.files.list(path):
            self._remove_tree(paths.join(path, entry))
        self.files.remove_directory(path)


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(f"partitions must be from 1 to {PARTITIONS_MAX}, not {partitions}")


def find(topics: Mapping[str, Any], name: str) -> Any:
    """Returns a topic by name, or raises UnknownTopic; topics are never created by a typo."""
    if not isinstance(name, str) or name not in topics:
        raise UnknownTopic(f"there is no topic {name!r}", tuple(sorted(topics)[:10]))
    return topics[name]
