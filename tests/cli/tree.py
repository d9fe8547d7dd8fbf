"""A data directory that holds a file of every kind, and the program run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from lamina.api import Gap
from lamina.formats import producer_journal
from lamina.formats.documents import archive_manifest, group_copy, ledger, topic_file
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from tests.formats.test_frame_index import golden_log
from tests.formats.test_keratin_golden import segment_of_a_thousand

GOLDEN = Path(__file__).parents[1] / "golden"
FRAME = "topics/f/0/segments/00000000000000000000"
KERATIN = "topics/k/0/segments/00000000000000000042"
SEGMENT = "segments/0000000000000a0b/seg-00000000000000000001"


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def every_kind() -> dict[str, tuple[str, bytes]]:
    """Where each kind of file lies in a data directory, what it is called, and what it holds."""
    gaps = Ledger().with_gap(Gap(0, 4096, "retention", 1, "old"))
    journal = producer_journal.encode(
        [producer_journal.Entry(7, first, first, 2, 0) for first in (0, 2, 4)]
    )
    settings = TopicFile("f", "frame", partitions=1, epoch=1, created_ms=1)
    known_topics = golden("frame-checkpoint.json").replace(b'"orders"', b'"f"')
    owner = group_copy.Owner("orders", 1, 1, 0, "billing", "5b1e")
    rows = [[7, 9]], [[5, 1_700_000_000_000, 2]]
    copied = group_copy.GroupCopy(owner, 1_700_000_000_000, 5, 5, *rows)
    return {
        "meta/broker.id": ("broker identity", golden("frame-broker.json")),
        "meta/checkpoint.json": ("checkpoint", known_topics),
        "meta/snapshot-1.bin": ("metadata snapshot", golden("wal-snapshot.bin")),
        "topics/f/topic.json": ("topic settings", topic_file.encode(settings)),
        "topics/f/0/ledger.json": ("ledger of gaps", ledger.encode(gaps)),
        "topics/f/0/producers.log": ("journal of producers", journal),
        f"{FRAME}.log": ("frame log", golden_log()),
        f"{FRAME}.idx": ("frame index", golden("frame-idx.bin")),
        f"{FRAME}.timeidx": ("frame time index", golden("frame-timeidx.bin")),
        "topics/g/0/segments/00000000000000000000.log": ("frame log", golden("frame-log.bin")),
        "topics/f/0/segments/00000000000000004096.tomb": ("tombstone", golden("frame-tomb.json")),
        "topics/k/0/manifest.bin": ("keratin manifest", golden("keratin-manifest.bin")),
        f"{KERATIN}.log": ("keratin log", segment_of_a_thousand()),
        f"{KERATIN}.idx": ("keratin index", golden("keratin-idx.bin")),
        f"{KERATIN}.tidx": ("keratin time index", golden("keratin-tidx.bin")),
        "topics/l/0/segments/00000000000000000042.log": ("keratin log", golden("keratin-log.bin")),
        "wal/CURRENT": ("current WAL file", golden("wal-current.bin")),
        "wal/wal-1.log": ("write-ahead log", golden("wal-log.bin")),
        f"{SEGMENT}.data": ("wal segment", golden("wal-segment.bin")),
        f"{SEGMENT}.idx": ("wal segment index", golden("wal-index.bin")),
        "groups/orders-0_billing.snap": ("group snapshot", golden("keratin-snap.bin")),
        "groups/orders-0_billing.delta": ("group journal", golden("keratin-delta.bin")),
        "archive/data/orders/0/00000000000000000100.seg": (
            "strm segment",
            golden("strm-orders.seg"),
        ),
        "archive/data/orders/1/manifest.json": (
            "list of objects",
            archive_manifest.encode(archive_manifest.Manifest("orders", 1, 1, 1)),
        ),
        "archive/data/orders/0/state/billing.json": ("copy of a group", group_copy.encode(copied)),
    }


KINDS = every_kind()


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def in_a_process(*arguments: object, **given: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lamina.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, **given
    )


def flip(path: Path, position: int, change: int = 0x80) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= change
    path.write_bytes(data)
