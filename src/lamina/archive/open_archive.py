"""From what a user calls an archive to an object store: a URL, a path, or one that is open.

    the argument  >  LAMINA_ARCHIVE  >  what the data directory remembers  >  no archive

Rules.
1. A remembered archive that cannot be reached never keeps a directory from being opened: only
   records that are in the archive alone are unavailable.
2. A directory that was an archive and is not there is away (a mount that failed), never empty.
3. What other processes cannot reach (an object store in memory, one that the caller has made) is
   not remembered.
4. Another archive takes the place of the remembered one only if it holds every record that the log
   has handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lamina.api import RecoveryReport
from lamina.archive.location import is_path, location_of, recalled, remember, remembered
from lamina.config import ARCHIVE_VARIABLE
from lamina.errors import ArchiveUnavailable, InvalidRequest
from lamina.storage import machine, paths
from lamina.storage.files import Files, LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import ObjectInfo, Objects, Stored, open_objects

if TYPE_CHECKING:
    from typing_extensions import Buffer

Archive: TypeAlias = str | Objects | None
_Result = TypeVar("_Result")


def open_archive(
    archive: Archive, files: Files | None = None, data: str | None = None
) -> Objects | None:
    """Opens `s3://bucket/prefix`, `file:///path`, a path or `memory://`; None for none.

    Without an argument the environment's LAMINA_ARCHIVE is used, and then what the data directory
    `data` remembers. An empty text means no archive, whatever is remembered.
    """
    if archive is not None and not isinstance(archive, str):
        return archive
    files = files or LocalFiles()
    known = remembered(files, data) if data is not None else None
    chosen = _chosen(archive, known)
    return _open(chosen, files, known) if chosen else None


def _chosen(archive: str | None, known: str | None) -> str | None:
    if archive is not None:
        return archive
    return machine.ENVIRONMENT.get(ARCHIVE_VARIABLE) or known


def _open(chosen: str, files: Files, known: str | None) -> Objects:
    is_known = known is not None and location_of(chosen) == known
    if is_path(chosen):
        kind = KnownDirectory if is_known else DirectoryObjects
        return kind(files, location_of(chosen))
    try:
        return open_objects(chosen)
    except InvalidRequest as error:
        if not is_known:
            raise
        return Unreachable(chosen, str(error))


class KnownDirectory(DirectoryObjects):
    """A directory that has been an archive before: where it is not there, it is away."""

    def _typed(self, doing: str, key: str, action: Callable[[], _Result]) -> _Result:
        if not self._files.is_directory(self.url):
            raise ArchiveUnavailable(
                f"{self.url}: the archive's directory is not there; is it mounted?"
            )
        return super()._typed(doing, key, action)


@dataclass(slots=True)
class Unreachable:
    """An archive that cannot even be opened: all that it is asked for is unavailable."""

    url: str
    why: str

    def _refuse(self) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"{self.url}: {self.why}")

    def read(self, key: str) -> Stored:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def size(self, key: str) -> int:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def create(self, key: str, data: Buffer) -> None:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raises ArchiveUnavailable."""
        raise self._refuse()

    def delete(self, key: str) -> None:
        """Raises ArchiveUnavailable."""
        raise self._refuse()


class Memory:
    """What a writer knows of its archive's location: what it was given, and what it remembered."""

    def __init__(self, archive: Archive, files: Files, data: str, report: RecoveryReport) -> None:
        self._files = files
        self._data = data
        self._report = report
        self._known, problem = recalled(files, data)
        if problem:
            report.add("note", paths.join(data, paths.ARCHIVE_LOCATION), problem)
        self.objects: Objects | None = None
        self._wanted: str | None = None
        if archive is not None and not isinstance(archive, str):
            self.objects = archive
            return
        chosen = _chosen(archive, self._known)
        if chosen:
            self.objects = _open(chosen, files, self._known)
            if not chosen.startswith("memory:"):
                self._wanted = location_of(chosen)

    @property
    def is_own(self) -> bool:
        """Whether the archive is not another one than the directory remembers."""
        return self._wanted is None or self._known in (None, self._wanted)

    def keep(self, lacking: Callable[[], Iterable[tuple[str, int, int]]]) -> None:
        """Remembers the archive; raises InvalidRequest if records would be out of reach then.

        `lacking` yields which records the log has handed over and this archive does not hold, as
        (partition, first, end). Called before anything is archived: what is handed over is found
        again afterwards. A disk without room for the file is reported, and the next opening tries
        again.
        """
        if self._wanted is None or self._wanted == self._known:
            return
        for name, first, end in lacking() if self._known is not None else ():
            raise InvalidRequest(
                f"this store's archive is {self._known}; {self._wanted} does not hold the archived"
                f" records of {name} from {first} to {end}. To move the archive, copy every object"
                f" below {self._known} to {self._wanted} and open the store with that; to go on as"
                " before, name no archive"
            )
        try:
            remember(self._files, self._data, self._wanted)
        except OSError as error:
            where = paths.join(self._data, paths.ARCHIVE_LOCATION)
            self._report.add("note", where, f"the archive's location could not be kept: {error}")
            return
        self._known = self._wanted
