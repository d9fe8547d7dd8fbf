"""Batches that real clients sent, byte for byte: each is the same five records.

The files are named by client and codec, and were taken from Produce requests as they arrived.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.formats.kafka import batch
from lamina.formats.kafka.compression import Codec
from lamina.formats.kafka.faults import BadBatch

SENT = sorted((Path(__file__).parent / "kafka_clients").glob("*.bin"))
RECORDS: list[Any] = [
    (b"key", b"value", 1_700_000_000_000, [("a", b"1"), ("a", b""), ("ü", b"2")]),
    (None, b"no key", 1_700_000_000_001, []),
    (b"tombstone", None, 1_700_000_000_005, []),
    (b"", b"", 1_700_000_000_003, [("", b"")]),
    (b"long", b"v" * 300, 1_700_000_000_004, []),
]


@pytest.mark.parametrize("path", SENT, ids=lambda path: path.stem)
def test_what_a_client_sent_is_read(path: Path) -> None:
    found = batch.decode(path.read_bytes(), 1 << 20)
    rows = [
        (
            row["key"],
            row["value"],
            round(row["timestamp"].timestamp() * 1000),
            [(each["key"], each["value"]) for each in row["headers"] or ()],
        )
        for row in found.records.to_pylist()
    ]
    assert rows == RECORDS
    assert found.codec is Codec[path.stem.rsplit("-", 1)[1].upper()]
    assert not found.is_transactional


@pytest.mark.parametrize("path", SENT, ids=lambda path: path.stem)
def test_every_byte_that_is_changed_is_noticed(path: Path) -> None:
    sent = path.read_bytes()
    for at in range(8, len(sent)):
        if 12 <= at < 16:
            continue  # the leader's epoch is the broker's to set, and outside of the checksum
        changed = bytearray(sent)
        changed[at] ^= 0x55
        with pytest.raises(BadBatch):
            batch.decode(bytes(changed), 1 << 20)


def test_every_codec_was_taken_from_several_clients() -> None:
    codecs = [path.stem.rsplit("-", 1)[1] for path in SENT]
    assert all(codecs.count(each.name.lower()) >= 3 for each in Codec)
