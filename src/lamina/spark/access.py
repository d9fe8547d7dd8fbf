"""What opens an object store in another process: a URL and options that never print.

A data source is pickled for the workers of Spark, with its options. Secrets among them must not
show in a log line, a plan or an error: the options are left out of the text of this value.

Options are those of the object store (`access_key_id`, `secret_access_key`, `endpoint`, `region`,
…). Without any, every process uses its own environment (AWS_*) or the machine's role.

Rule: what talks to object stores is imported when one is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import lamina
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.storage.objects import Objects

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """Where an archive is, and what opens it.

    `data` is the directory whose archive it is: one that it remembers and that is not there is away
    (a mount that failed), not empty.
    """

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    data: str | None = None

    @classmethod
    def of(cls, url: str, options: Mapping[str, str], data: str | None = None) -> ArchiveAccess:
        """Makes one from a URL or a path, and the object store's own options."""
        if url.startswith("memory://"):
            raise InvalidRequest("an archive in memory is seen by one process only")
        if options and not url.startswith(("s3://", "s3a://")):
            raise InvalidRequest(f"options {sorted(options)} are for s3://, not for {url!r}")
        return cls(url, tuple(sorted(options.items())), data)

    def open(self) -> Objects:
        """Opens the object store; once in a process."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(access: ArchiveAccess) -> Objects:
    from lamina.archive.open_archive import open_archive
    from lamina.storage.objects import open_objects

    if access.options:
        return open_objects(access.url, **dict(access.options))
    objects = open_archive(access.url, data=access.data)
    assert objects is not None, "an archive has a name"
    return objects


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A running server, and the key that it lets in."""

    url: str
    api_key: str | None = field(default=None, repr=False)

    def connect(self, timeout_s: float = TIMEOUT_S) -> lamina.RemoteStore:
        """Connects; without a key of its own, with that of the process's environment."""
        return lamina.connect(self.url, api_key=self.api_key, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Where:
    """Where a log is: a directory, an archive, or a server; the first two may have both."""

    path: str | None = None
    server: ServerAccess | None = None
    archive: ArchiveAccess | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        if self.server is not None:
            return self.server.url
        return self.path or (self.archive.url if self.archive else "")
