"""Lamina: a durable, segmented event log for Python and Spark.

import lamina

with lamina.open("data") as store:
    store.create_topic("orders")
    ack = store.append("orders", [b"first", b"second"])
    for batch in store.scan("orders", start=ack.base_offset):
        print(batch.to_pylist())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from lamina.errors import (
    Closed,
    CorruptData,
    InvalidRequest,
    LaminaError,
    Unavailable,
)

if TYPE_CHECKING:
    from lamina.engine.readonly import ReadOnlyStore
    from lamina.engine.store import Store
    from lamina.engine.writer import ProducerStamp
    from lamina.records import RECORD_SCHEMA

__all__ = [
    "RECORD_SCHEMA",
    "Closed",
    "CorruptData",
    "InvalidRequest",
    "LaminaError",
    "ProducerStamp",
    "ReadOnlyStore",
    "Store",
    "Unavailable",
    "open",
]

_LAZY = {
    "RECORD_SCHEMA": "lamina.records",
    "ProducerStamp": "lamina.engine.writer",
    "ReadOnlyStore": "lamina.engine.readonly",
    "Store": "lamina.engine.store",
}


@overload
def open(path: str, *, read_only: Literal[False] = False) -> Store: ...
@overload
def open(path: str, *, read_only: Literal[True]) -> ReadOnlyStore: ...
def open(path: str, *, read_only: bool = False) -> Store | ReadOnlyStore:
    """Opens a data directory; makes it on the first boot, recovers it on later ones.

    One process may have it open for writing; any number may read beside it with `read_only=True`.
    """
    from lamina.engine.readonly import ReadOnlyStore
    from lamina.engine.store import Store

    return ReadOnlyStore(path) if read_only else Store(path)


def __getattr__(name: str) -> object:
    """Imports the heavier names when they are first used, so that `import lamina` is instant."""
    if name not in _LAZY:
        raise AttributeError(f"module 'lamina' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
