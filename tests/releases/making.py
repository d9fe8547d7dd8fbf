"""Writes a directory with a file of every kind that a store alone writes, and what it answers.

    python -m tests.releases.making 2      writes tests/releases/release-2.tar.gz

It is run once, by the state of the product whose directories are to be opened for ever; from then
on only later states open what it wrote (`tests/store/test_upgrade.py`). The archive holds

    data, killed      a store that was closed, and the same one as a kill left it
    archive           what it had archived
    expected.json     what it answered when it was opened again: of `data`, and of `killed`

Times, values and offsets are the same in every run; identities, producers' and schemas' names that
are drawn, and the times that the file system gives, are not, and are no part of the answers.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import lamina
from lamina.api import ProducerStamp, StoreApi
from lamina.api.memberships import Committed
from lamina.config import WalSettings
from lamina.store import transactions
from lamina.store.store import Store
from lamina_torture.faults.transactions import made
from tests.support.contract import plain
from tests.support.directories import Clock, opened

HERE = Path(__file__).parent
SETTINGS = WalSettings(shards=1, segment_events=4)
FORMATS = ("frame", "keratin", "wal")
MINUTE_MS = 60_000
ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": "string"},
        ],
    }
)
WIDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "what", "type": "string", "aliases": ["item"]},
            {"name": "count", "type": "int", "default": 1},
        ],
    }
)
ROWS = [{"id": 1, "item": "a"}, {"id": 2, "item": "ç"}]
STAMP = ProducerStamp(7, 0, 0)


def write(folder: Path) -> None:
    """Writes both directories, the archive and the answers below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with _opened(folder, "data", clock) as store:
        for format_name in FORMATS:
            _plain(store, clock, format_name)
            _typed(store, format_name)
        _groups(store)
        store.create_router("errors", "plain-wal", "copies-wal", tag=b"error")
        store.append("plain-wal", [{"value": b"routed", "tag": b"error"}], partition=0)
        store.maintain()
        store.archive()
        with mock.patch.object(transactions, "MEMORY_BYTES_MAX", 200):  # what is open has a file
            _transactions(store)
        shutil.copytree(folder / "data", folder / "killed")
    for kind in ("data", "killed"):
        shutil.copytree(folder / kind, folder / f"{kind}-opened")
    told = {kind: _told(folder, f"{kind}-opened", clock) for kind in ("data", "killed")}
    for kind in told:
        shutil.rmtree(folder / f"{kind}-opened")
    (folder / "expected.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


def _opened(folder: Path, kind: str, clock: Clock) -> Store:
    return opened(folder / kind, clock, archive=str(folder / "archive"), wal=SETTINGS)


def _told(folder: Path, kind: str, clock: Clock) -> dict[str, Any]:
    with _opened(folder, kind, clock) as store:
        return answers(store)


def _plain(store: Store, clock: Clock, format_name: str) -> None:
    """Records over some segments, of which the first is archived and gone, trimmed or deleted."""
    topic, label = f"plain-{format_name}", "tag" if format_name == "wal" else "key"
    config = {"remote.storage.enable": "true", "local.retention.bytes": 1}
    store.create_topic(topic, partitions=2, format=format_name, config=config)
    if format_name == "wal":
        store.create_topic("copies-wal", partitions=2, format="wal")
    for number in range(12):
        clock.now_ms += 1000
        row = {"value": b"%s %d" % (topic.encode(), number), label: b"tag-%d" % (number % 3)}
        store.append(topic, [row], partition=0)
        if number in (3, 7) and format_name != "wal":
            store.roll(topic, 0)
            store.archive()
    store.append(topic, [b"idempotent"], partition=1, producer=STAMP)
    store.maintain()
    store.archive()
    store.maintain()
    store.trim(topic, 0, 4)
    store.alter_topic(topic, {"retention.ms": 10**12})


def _typed(store: Store, format_name: str) -> None:
    """Records of a schema, and of the next version of it."""
    topic = f"typed-{format_name}"
    store.create_topic(topic, format=format_name, schema=ORDER)
    store.append(topic, ROWS, partition=0)
    store.set_schema(topic, WIDER)
    store.append(topic, [{"id": 3, "what": "new", "count": 5}], partition=0)


def _groups(store: Store) -> None:
    """A share group with acks ahead and a lease, a classic group, and settings of groups."""
    for format_name in FORMATS:
        group = store.group(f"plain-{format_name}", "billing")
        group.ack(group.poll(3))
        held = group.poll(4, lease_ms=MINUTE_MS)
        group.ack(held.slice(2, 1))
        store.commit_offsets("classic", [Committed(f"plain-{format_name}", 0, 7)])
    store.coordinator.share_settings.alter("billing", {"share.auto.offset.reset": "earliest"})


def _transactions(store: Store) -> None:
    """One is stored, one aborted, one decided and not stored yet, and one is open."""
    own = store.transactions
    for name in ("stored", "aborted", "decided", "open"):
        claim = own.init(name, MINUTE_MS)
        places = [(f"plain-{format_name}", 1) for format_name in FORMATS]
        own.add_partitions(claim, places)
        for place in places:
            data, batch = made([f"{name} {place[0]} {row}" for row in range(2)], 0)
            own.stage(claim, place, batch, data)
        own.add_group(claim, "classic")
        own.stage_offsets(claim, "classic", [Committed("plain-keratin", 1, len(name))])
        if name == "decided":
            with mock.patch.object(transactions.Transactions, "_finish"):
                own.end(claim, commit=True)
        elif name != "open":
            own.end(claim, commit=name == "stored")


def answers(store: StoreApi) -> dict[str, Any]:
    """What a store says of all that it holds, as JSON has it; the same in every run."""
    return {
        "topics": {topic: about(store, topic) for topic in store.topics()},
        "groups": {
            f"{topic}/{group}": [
                each.committed for each in store.describe_group(topic, group).partitions
            ]
            for topic, group in store.groups()
        },
        "classic": sorted(
            [each.topic, each.partition, each.offset] for each in store.committed_offsets("classic")
        ),
        "shared": _shared(store),
        "routers": [[each.name, each.source, each.target] for each in store.routers()],
    }


def _shared(store: StoreApi) -> str:
    """Where a share group begins that has no offset, which is a setting of its own."""
    settings: Any = store.coordinator
    return str(settings.share_settings.of("billing").start)


def about(store: StoreApi, topic: str) -> dict[str, Any]:
    """What a store says of a topic: its records, their columns and schemas, and its settings."""
    found = store.describe_topic(topic)
    parts = range(len(found.partitions))
    told: dict[str, Any] = {
        "format": found.format,
        "retention.ms": found.settings["retention.ms"],
        "remote.storage.enable": found.settings["remote.storage.enable"],
        "parts": [_part(store, topic, number) for number in parts],
        "schemas": [json.loads(each.text) for each in store.schemas(topic)],
    }
    if told["schemas"]:
        table = store.read(topic).read_all()
        names = [name for name in table.schema.names if not name.startswith("_")]
        told["columns"] = table.select(names).to_pylist()
    return told


def _part(store: StoreApi, topic: str, partition: int) -> dict[str, Any]:
    start = store.earliest_offset(topic, partition)
    rows = [row for batch in store.scan(topic, partition, start) for row in plain(batch)]
    is_typed = bool(store.schemas(topic))
    return {
        "earliest": start,
        "latest": store.latest_offset(topic, partition),
        "gaps": [[gap.first, gap.end, gap.reason] for gap in store.gaps(topic, partition)],
        # A typed value begins with its schema's id, which is drawn: its columns are compared.
        "rows": [
            [row["offset"], "" if is_typed else row["value"].decode(), _label(row)] for row in rows
        ],
    }


def _label(row: dict[str, Any]) -> str:
    return (row.get("tag") or row.get("key") or b"").decode()


def main() -> None:
    """Writes an archive; one that is there is never written again."""
    target = HERE / f"release-{int(sys.argv[1])}.tar.gz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "x:gz") as packed:
        write(Path(folder))
        for each in sorted(Path(folder).iterdir()):
            packed.add(each, each.name)
    print(f"{target} was written by lamina {lamina.__version__}")


if __name__ == "__main__":
    main()
