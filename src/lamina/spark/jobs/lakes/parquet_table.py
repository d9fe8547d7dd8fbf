"""Plain Parquet by day, with commits of our own: `date=…/*.parquet`, and what belongs to it.

    <out>/date=2026-01-31/<uuid>.parquet
    <out>/_lamina/commits/<number:020>.json   what a commit holds: files, and offsets done
    <out>/_lamina/staging/<run>/date=…/…      files that are not committed, or not moved yet

    {"version": 1, "number": 3, "run": "…", "topic": "orders@1.1767225600000",
     "spans": {"0": [100, 200]}, "done": {"0": 200},
     "files": [{"path": "date=…/….parquet", "date": "…", "rows": 100, "size_bytes": 4096,
                "first_offset": 100, "last_offset": 199}], "crc32": "…"}

*All or nothing.* Executors write into the run's staging directory, which readers of Parquet skip,
as they skip all that begins with an underscore. The commit is one durable file, written in one
step: it decides. Then its files are moved to where their path says. `committed` lists the files of
all commits, and finds one that is not moved yet in its staging place.

| killed                         | left behind                | the next run              |
|--------------------------------|----------------------------|---------------------------|
| while files are written        | a staging directory        | removes it                |
| before the commit is there     | a staging directory        | removes it                |
| while files are moved          | the commit, some not moved | moves them, then goes on  |
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.documents import strict_json
from lamina.spark.jobs import topic_rows
from lamina.spark.jobs.export import Export
from lamina.spark.jobs.lakes.table_lock import OURS, alone_in
from lamina.spark.jobs.topic_rows import Topic
from lamina.storage import machine, paths
from lamina.storage.files import Files, LocalFiles

VERSION = 1
COMMITS, STAGING = f"{OURS}/commits", f"{OURS}/staging"
_COMMIT = {
    "version": int,
    "number": int,
    "run": str,
    "topic": str,
    "spans": dict,
    "done": dict,
    "files": list,
}
_FILE = {
    "path": str,
    "date": str,
    "rows": int,
    "size_bytes": int,
    "first_offset": int,
    "last_offset": int,
}


def decode(raw: bytes) -> dict[str, Any]:
    """Decodes a commit; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(raw)
    fields = strict_json.check_sealed(document, VERSION)
    strict_json.check_fields(fields, "the commit", _COMMIT)
    for each in fields["files"]:
        file = strict_json.as_object(each, "a file")
        strict_json.check_fields(file, "a file", _FILE)
        if ".." in file["path"].split("/") or file["path"].startswith("/"):
            raise CorruptData("a file's path leads out of the export", found=file["path"])
    return fields


def committed(path: str) -> list[str]:
    """Lists the Parquet files of an export that are committed, wherever they are by now."""
    lake = ParquetLake(path)
    found = []
    for number in lake.numbers():
        commit = lake.read(number)
        for file in commit["files"]:
            staged, final = lake.places(commit, file["path"])
            found.append(staged if machine.exists(staged) else final)
    return found


class ParquetLake:
    """A directory of Parquet files on a file system that driver and executors share."""

    def __init__(self, path: str, files: Files | None = None) -> None:
        if "://" in path:
            raise InvalidRequest(f"{path!r}: Parquet is exported to directories")
        self._path = paths.absolute(path)
        self._files = files or LocalFiles()
        self._run = uuid.uuid4().hex

    @property
    def name(self) -> str:
        """The directory."""
        return self._path

    def numbers(self) -> list[int]:
        """Lists the commits there are."""
        names = self._files.list(self._at(COMMITS)) if self._files.exists(self._at(COMMITS)) else []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json"))

    def read(self, number: int) -> dict[str, Any]:
        """Reads a commit."""
        path = self._at(COMMITS, f"{number:020}.json")
        try:
            return decode(self._files.read(path))
        except CorruptData as error:
            raise error.at_path(path) from error

    def places(self, commit: dict[str, Any], path: str) -> tuple[str, str]:
        """Returns where a file of a commit was staged, and where it belongs."""
        return self._at(STAGING, commit["run"], path), self._at(path)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other runs away, moves what a killed one has committed, sweeps what it has not."""
        for directory in (COMMITS, STAGING):
            self._files.make_directory(self._at(directory))
        with alone_in(self._files, self._path):
            for number in self.numbers()[-1:]:
                self._move(self.read(number))
            self._sweep(self._at(STAGING))
            yield

    def done(self, topic: Topic) -> dict[int, int]:
        """Returns how far a topic is exported, by the last commit."""
        for number in self.numbers()[-1:]:
            commit = self.read(number)
            if commit["topic"] != topic.identity:
                raise InvalidRequest(
                    f"{self._path} holds an export of {commit['topic']}, not of {topic.identity}:"
                    " give each topic, and a topic that was created again, its own directory"
                )
            return {int(partition): end for partition, end in commit["done"].items()}
        return {}

    def directory(self) -> str:
        """The staging directory of this run."""
        return self._at(STAGING, self._run)

    def commit(self, export: Export) -> None:
        """Writes the commit, then moves its files to their places."""
        number = max(self.numbers(), default=0) + 1
        fields = {
            "version": VERSION,
            "number": number,
            "run": self._run,
            "topic": export.topic.identity,
            "spans": topic_rows.to_plain(export.spans),
            "done": {str(partition): end for partition, end in sorted(export.done.items())},
            "files": [asdict(file) for file in export.files],
        }
        raw = json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n"
        self._files.replace(self._at(COMMITS, f"{number:020}.json"), raw.encode())
        self._move(fields)
        self._sweep(self._at(STAGING))

    def _move(self, commit: dict[str, Any]) -> None:
        """Moves the files of a commit that are not in their places yet."""
        folders = set()
        for file in commit["files"]:
            staged, final = self.places(commit, file["path"])
            if self._files.exists(staged):
                self._files.make_directory(paths.parent(final))
                self._files.rename(staged, final)
                folders |= {paths.parent(staged), paths.parent(final)}
        for folder in sorted(folders):
            self._files.sync_directory(folder)

    def _sweep(self, directory: str) -> None:
        """Removes all that is staged below a directory: no run is under way."""
        for name in self._files.list(directory):
            path = paths.join(directory, name)
            if self._files.is_directory(path):
                self._sweep(path)
                self._files.remove_directory(path)
            else:
                self._files.remove(path)

    def _at(self, *names: str) -> str:
        return paths.join(self._path, *names)
