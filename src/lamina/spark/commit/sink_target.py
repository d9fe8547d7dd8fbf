"""Where the sink writes to: an embedded directory, or a running server.

Both commit by the same steps (`transactions`). For a directory the parts and the commit lie below
it, and whoever has the store open carries the commit out. For a server they lie in a staging
directory that the driver and every executor see, and the driver carries the commit out by appends
that the server stores once, whatever is repeated.

Rule: one process at a time commits in a staging directory; a lock says which.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, Locked, Unavailable
from lamina.formats.documents.sink_transaction import Transaction
from lamina.formats.documents.topic_file import TopicFile
from lamina.spark.access import TIMEOUT_S, ServerAccess, Where
from lamina.spark.commit.handover import publish
from lamina.spark.commit.transaction import Publisher
from lamina.spark.logs.local import boot_of
from lamina.spark.logs.served_log import described, file_of
from lamina.storage import machine, paths
from lamina.storage.files import Files, wall_clock_ms
from lamina.store.schema_files import SchemaFiles
from lamina.store.typed_topics import versions_of

AGAIN_S = 0.1
BELOW_CHECKPOINT = "lamina-sink"


class Target(Protocol):
    """What a sink writes to; it can be pickled."""

    @property
    def data(self) -> str:
        """The directory below which parts are staged."""

    def topics(self) -> dict[str, TopicFile]:
        """Returns the topics that rows can go to."""

    def schemas(self, topic: str) -> list[TopicSchema]:
        """Returns the versions of a topic's schema; none for an untyped topic or none."""

    def publish(self, transaction: Transaction, files: Files, timeout_ms: int) -> bool:
        """Commits a transaction; returns False, and changes nothing, if it was before."""


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """A data directory."""

    data: str

    def topics(self) -> dict[str, TopicFile]:
        """Returns the directory's topics."""
        return boot_of(self.data).catalog.peek()

    def schemas(self, topic: str) -> list[TopicSchema]:
        """Returns the versions that lie beside the topic."""
        about = self.topics().get(topic)
        return [] if about is None else versions_of(SchemaFiles(boot_of(self.data)).document(about))

    def publish(self, transaction: Transaction, files: Files, timeout_ms: int) -> bool:
        """Commits through whoever has the store open."""
        return publish(self.data, transaction, files=files, timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server, with a directory to stage in."""

    access: ServerAccess
    data: str

    def topics(self) -> dict[str, TopicFile]:
        """Returns the server's topics."""
        with self.access.connect() as store:
            found = [described(store, name) for name in store.topics()]
        return {each.name: file_of(each) for each in found if each is not None}

    def schemas(self, topic: str) -> list[TopicSchema]:
        """Returns the versions that the server has."""
        with self.access.connect() as store:
            return store.schemas(topic) if topic in store.topics() else []

    def publish(self, transaction: Transaction, files: Files, timeout_ms: int) -> bool:
        """Commits by appends that are stored once; goes on after a server that went away."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        with _alone(files, paths.join(self.data, paths.SINK_LOCK), deadline_s):
            while True:
                try:
                    return self._publish(files, transaction, deadline_s)
                except Unavailable:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(AGAIN_S)

    def _publish(self, files: Files, transaction: Transaction, deadline_s: float) -> bool:
        left_s = max(deadline_s - time.monotonic(), AGAIN_S)
        with self.access.connect(min(left_s, TIMEOUT_S)) as store:

            def topic_of(name: str) -> TopicFile | None:
                found = described(store, name)
                return None if found is None else file_of(found)

            publisher = Publisher(store, files, self.data, wall_clock_ms, topic_of)
            stored = publisher.settle(transaction)
            publisher.go_on()
            return stored


@contextlib.contextmanager
def _alone(files: Files, path: str, deadline_s: float) -> Iterator[None]:
    """Holds the lock of a staging directory; waits for whoever has it."""
    files.make_directory(paths.parent(path))
    while True:
        try:
            lock = files.lock(path, machine.holder())
            break
        except Locked:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(AGAIN_S)
    try:
        yield
    finally:
        lock.release()


def target_of(where: Where, staging: str | None, checkpoint: str | None) -> Target:
    """Makes the target of a sink; a server needs a place to stage in."""
    if where.server is None:
        if where.path is None:
            raise InvalidRequest("an archive is not written to: write to the store it comes from")
        return DirectoryTarget(boot_of(where.path).data)
    if staging is None and checkpoint is not None and "://" not in checkpoint:
        staging = paths.join(checkpoint.removeprefix("file:"), BELOW_CHECKPOINT)
    if staging is None:
        raise InvalidRequest(
            "writing to a server needs 'stagingPath': a directory that the driver and every"
            " executor see, and that stays the same when this job is run again"
        )
    return ServerTarget(where.server, paths.absolute(staging))
