"""Users of what lies beside records: the schemas of a typed topic, and transactions.

Both are of the template's third topic. Damage to its schemas may cost its columns, and damage to a
decided transaction all of its records: never a part of them, and never without a word.
"""

from __future__ import annotations

from typing import Any

import lamina
from lamina.errors import LaminaError
from lamina.storage import paths
from lamina_torture.cross.ground import Ground, Saw
from lamina_torture.cross.templates import DECIDED, MINUTE_MS, TYPED, TYPED_ROWS
from lamina_torture.rows import demand


def typed_read(ground: Ground) -> Saw:
    """Reads the columns of a typed topic, and asks for its schemas."""
    with ground.open() as store:
        columns(store, ground)
    return Saw()


def typed_read_only(ground: Ground) -> Saw:
    """The same of a store that does not write."""
    with lamina.open(ground.data, read_only=True) as store:
        columns(store, ground)
    return Saw()


def columns(store: Any, ground: Ground) -> None:
    """Demands the rows that were appended; of damaged schemas, an error or a report."""
    may_lack = ground.damaged.path.endswith(paths.TOPIC_SCHEMAS)
    try:
        known = store.schemas(TYPED)
        table = store.read(TYPED, partition=0).read_all()
    except LaminaError as error:
        demand(may_lack, "I1", f"served: columns cannot be read: {type(error).__name__}: {error}")
        return
    if not known:  # its records are read as values: no file says that there ever was a schema
        demand(may_lack and ground.damaged.kind == "gone", "I9", "told: the schemas are gone")
        return
    demand(store.schema(TYPED) == known[-1], "I9", "served: the last schema is another one")
    found = table.select(list(TYPED_ROWS[0])).to_pylist()
    demand(found == TYPED_ROWS, "I1", f"served: {len(found)} rows of {len(TYPED_ROWS)}, or others")


def transactions(ground: Ground) -> Saw:
    """Opens a store with a transaction that is decided; its producer, and others, go on."""
    with ground.open() as store:
        found = [
            value.as_py()
            for batch in store.scan(TYPED, 1, store.earliest_offset(TYPED, 1))
            for value in batch.column("value")
        ]
        whole = [each.encode() for each in DECIDED]
        is_hurt = f"/{paths.TRANSACTIONS}/" in ground.damaged.path
        demand(found in ([], whole), "I1", f"served: {len(found)} records of a transaction")
        demand(bool(found) or is_hurt, "I1", "served: a decided transaction is not stored")
        if not found:
            told = [each.path for each in store.recovery_report.events]
            is_gone = ground.damaged.kind == "gone"
            demand(is_gone or any(map(_is_of_one, told)), "I4", "told: its loss is not reported")
        for name in ("decided", "open", "new"):
            store.transactions.init(name, MINUTE_MS)
    return Saw()


def _is_of_one(path: str) -> bool:
    return f"/{paths.TRANSACTIONS}/" in path
