"""Where a job's topics are: a data directory or a server, as the source and the sink take it."""

from __future__ import annotations

from dataclasses import dataclass

import lamina
from lamina.api import StoreApi
from lamina.errors import InvalidRequest
from lamina.storage import paths


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory, or a server; exactly one of them is given."""

    path: str | None = None
    server: str | None = None
    archive: str | None = None
    """Where the archive is; without one, where the directory remembers, or the server knows."""

    @classmethod
    def of(cls, path: str | None, server: str | None, archive: str | None = None) -> Place:
        """Makes one from what a command line says."""
        if (path is None) == (server is None):
            raise InvalidRequest("say where: --data DIRECTORY or --server grpc://host:port")
        return cls(None if path is None else paths.absolute(path), server, archive)

    @property
    def options(self) -> dict[str, str]:
        """The options of `format("lamina")`."""
        if self.path is not None:
            return {"path": self.path}
        return {"server": self.server or ""}

    @property
    def source_options(self) -> dict[str, str]:
        """The options of a read, with the archive."""
        return self.options | ({} if self.archive is None else {"archive": self.archive})

    def reading(self) -> StoreApi:
        """Opens it to look at, also beside a live writer."""
        if self.path is not None:
            return lamina.open(self.path, read_only=True, archive=self.archive)
        return lamina.connect(self.server or "")

    def writing(self) -> StoreApi:
        """Opens it to change topics; raises Locked beside a live writer of the directory."""
        if self.path is not None:
            return lamina.open(self.path, archive=self.archive)
        return lamina.connect(self.server or "")
