"""Lamina: a durable, segmented event log for Python and Spark.

import lamina

with lamina.open("data") as store:
    store.create_topic("orders")
    ack = store.append("orders", [b"first", b"second"])
    for batch in store.scan("orders", start=ack.base_offset):
        print(batch.to_pylist())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NoReturn, cast, overload

from lamina.errors import (
    Closed,
    CorruptData,
    InvalidRequest,
    LaminaError,
    TopicExists,
    Unavailable,
)

if TYPE_CHECKING:
    from lamina.api import ProducerStamp
    from lamina.arguments import Location
    from lamina.client.consumer import Consumer
    from lamina.client.message import TopicPartition
    from lamina.client.producer import Producer
    from lamina.client.remote_store import RemoteStore
    from lamina.engines.open_table import dataset
    from lamina.records import RECORD_SCHEMA
    from lamina.storage.objects import Objects
    from lamina.store.archive_store import ArchiveStore
    from lamina.store.read_only import ReadOnlyStore
    from lamina.store.store import Store

__all__ = [
    "RECORD_SCHEMA",
    "ArchiveStore",
    "Closed",
    "Consumer",
    "CorruptData",
    "InvalidRequest",
    "LaminaError",
    "Producer",
    "ProducerStamp",
    "ReadOnlyStore",
    "RemoteStore",
    "Store",
    "TopicExists",
    "TopicPartition",
    "Unavailable",
    "__version__",
    "connect",
    "dataset",
    "open",
]

__version__ = "0.1.0"

_LAZY = {
    "Consumer": "lamina.client.consumer",
    "Producer": "lamina.client.producer",
    "TopicPartition": "lamina.client.message",
    "dataset": "lamina.engines.open_table",
    "RECORD_SCHEMA": "lamina.records",
    "ProducerStamp": "lamina.api",
    "ArchiveStore": "lamina.store.archive_store",
    "ReadOnlyStore": "lamina.store.read_only",
    "RemoteStore": "lamina.client.remote_store",
    "Store": "lamina.store.store",
}


@overload
def open(
    path: Location,
    *,
    read_only: Literal[False] = False,
    archive: Location | Objects | None = None,
    open_files: int | None = None,
) -> Store: ...
@overload
def open(
    path: Location,
    *,
    read_only: Literal[True],
    archive: Location | Objects | None = None,
    open_files: int | None = None,
) -> ReadOnlyStore | ArchiveStore: ...
@overload
def open(
    path: Location,
    *,
    read_only: bool,
    archive: Location | Objects | None = None,
    open_files: int | None = None,
) -> Store | ReadOnlyStore | ArchiveStore: ...
def open(
    path: Location,
    *,
    read_only: bool = False,
    archive: Location | Objects | None = None,
    open_files: int | None = None,
) -> Store | ReadOnlyStore | ArchiveStore:
    """Opens a data directory; makes it on the first boot, recovers it on later ones.

    One process may have it open for writing; any number may read beside it with `read_only=True`.
    `archive` is the object store for topics with `remote.storage.enable`: `s3://bucket/prefix` or a
    directory. With an object store's URL as `path` the archive itself is read, without any broker.
    `open_files` is how many files stay open while nobody uses them (`LAMINA_OPEN_FILES_MAX`, or
    512); never more than half of what the process may open.
    """
    from lamina.arguments import count, flag, location, text

    path, read_only = location("path", path), flag("read_only", read_only)
    if open_files is not None:
        open_files = count("open_files", open_files)
    kept: str | Objects | None = None
    if archive is not None and hasattr(archive, "read_range"):
        kept = cast("Objects", archive)
    elif archive is not None:
        kept = location("archive", archive) if archive else text("archive", archive)
    if not read_only:
        if "://" in path:
            _refuse_url(path)
        from lamina.storage.kept_file import local_files
        from lamina.store.store import Store

        store = Store.__new__(Store)
        try:
            Store.__init__(store, path, files=local_files(open_files), archive=kept)
        except BaseException:  # an interrupt right behind it, too: nobody else has it yet
            store._abandon()
            raise
        return store
    if "://" not in path:
        from lamina.storage.kept_file import local_files
        from lamina.store.read_only import ReadOnlyStore

        return ReadOnlyStore(path, files=local_files(open_files), archive=kept)
    from lamina.archive.open_archive import open_archive
    from lamina.store.archive_store import ArchiveStore

    objects = open_archive(path)
    assert objects is not None
    return ArchiveStore(objects)


def _refuse_url(path: str) -> NoReturn:
    if path.startswith(("grpc", "http")):
        raise InvalidRequest(
            f"{path} is a server, not a directory: lamina.connect('grpc://host:9300') is for those"
        )
    raise InvalidRequest("an archive is opened with read_only=True; restore it to write")


def connect(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 30.0,
    tls_root: bytes | None = None,
    idempotent: bool = True,
) -> RemoteStore:
    """Connects to a server (`grpc://host:9300`); the same methods as those of an open store.

    What is sent again after a broken connection is stored once, unless `idempotent` is False: then
    it is not sent again. The key is that of `LAMINA_API_KEY` where none is given.
    """
    from lamina import arguments
    from lamina.client.remote_store import RemoteStore

    arguments.text("url", url)
    timeout_s = arguments.seconds("timeout_s", timeout_s)
    if timeout_s <= 0:
        raise InvalidRequest(f"timeout_s must be more than 0, not {timeout_s}")
    if api_key is not None and not arguments.text("api_key", api_key).isprintable():
        raise InvalidRequest("api_key must be printable: it travels in a header")
    if tls_root is not None:
        arguments.raw("tls_root", tls_root)
    arguments.flag("idempotent", idempotent)
    return RemoteStore(
        url, api_key=api_key, timeout_s=timeout_s, tls_root=tls_root, idempotent=idempotent
    )


def __getattr__(name: str) -> object:
    """Imports the heavier names when they are first used, so that `import lamina` is instant."""
    if name == "aio":
        from importlib import import_module

        return import_module("lamina.aio")
    import importlib

    if name == "polars":  # a module of its own, which needs Polars
        return importlib.import_module("lamina.polars")
    if name not in _LAZY:
        raise AttributeError(f"module 'lamina' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Names what there is to use, also what was not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
