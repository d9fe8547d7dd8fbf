"""Where a job's topics are: a data directory or a server, as the source and the sink take it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import lamina
from lamina.engine.reader import StoreReader
from lamina.engine.store import Store
from lamina.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory, or a server; exactly one of them is given."""

    path: str | None = None
    server: str | None = None

    @classmethod
    def of(cls, path: str | None, server: str | None) -> Place:
        """Makes one from what a command line says."""
        if (path is None) == (server is None):
            raise InvalidRequest("say where: --data DIRECTORY or --server grpc://host:port")
        return cls(None if path is None else os.path.abspath(path), server)

    @property
    def options(self) -> dict[str, str]:
        """What `format("lamina")` is told."""
        if self.path is not None:
            return {"path": self.path}
        return {"server": self.server or ""}

    def reading(self) -> StoreReader:
        """Opens it to look at, also beside a live writer."""
        if self.path is not None:
            return lamina.open(self.path, read_only=True)
        return lamina.connect(self.server or "")

    def writing(self) -> Store:
        """Opens it to change topics; raises Locked beside a live writer of the directory."""
        return (
            lamina.open(self.path) if self.path is not None else lamina.connect(self.server or "")
        )
