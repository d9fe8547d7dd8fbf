"""What a job that writes through the sink means to do, made durable before it is done.

    {"version": 1, "number": 3, "is_stored": false, "work": {…}, "crc32": "…"}

Truth: it says which work a transaction's number stands for. Before a run stages anything it writes
its intent; after the commit it writes that it is stored. A run that finds an intent which is not
stored repeats it under the same number, which the sink stores once, and only then goes on.

Rules.
1. A number never stands for two pieces of work: the intent is durable before a task starts.
2. One run of a job at a time, held by a lock that ends with the process.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json
from lamina.spark.jobs.lakes.table_lock import alone_in
from lamina.storage import paths
from lamina.storage.files import Files

VERSION = 1
NAME = paths.JOB_PLAN
_FIELDS = {"version": int, "number": int, "is_stored": bool, "work": dict}


@dataclass(frozen=True, slots=True)
class Intent:
    """Some work under a number; once it is stored, the next one has the next number."""

    number: int
    is_stored: bool
    work: dict[str, Any]


def encode(intent: Intent) -> bytes:
    """Encodes an intent."""
    fields = json.loads(json.dumps({"version": VERSION, **asdict(intent)}))
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(raw: bytes) -> Intent:
    """Decodes an intent; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(raw)
    fields = strict_json.check_sealed(document, VERSION)
    strict_json.check_fields(fields, "the plan", _FIELDS)
    return Intent(fields["number"], fields["is_stored"], fields["work"])


class Journal:
    """The last intent of one job, which writes under the name `application`."""

    def __init__(self, files: Files, directory: str, application: str) -> None:
        self._files = files
        self.directory = directory
        self.application = application
        self._path = paths.join(directory, NAME)

    def last(self) -> Intent | None:
        """Returns what was meant last; None before the first run."""
        if not self._files.exists(self._path):
            return None
        try:
            return decode(self._files.read(self._path))
        except CorruptData as error:
            raise error.at_path(self._path) from error

    def write(self, intent: Intent) -> None:
        """Makes an intent durable in one step."""
        self._files.replace(self._path, encode(intent))

    def take_back(self, before: Intent | None) -> None:
        """Puts what was meant before in the place of the last intent."""
        if before is not None:
            self.write(before)
        else:
            self._files.remove(self._path)
            # Or a crash brings the intent back, and the next run finishes what was taken back.
            self._files.sync_directory(self.directory)

    def alone(self) -> AbstractContextManager[None]:
        """Keeps other runs of the same job away; raises Locked if there is one."""
        return alone_in(self._files, self.directory)
