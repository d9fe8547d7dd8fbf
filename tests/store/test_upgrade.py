"""Directories of the states before this one are opened by this one: nothing is missing.

`tests/releases/release-1.tar.gz` was written by the first of them: a store that was closed
(`data`), the same one as a kill left it (`killed`), what it had archived, and what it answered
(`expected.json`). Topics of all formats, rolled, trimmed, deleted from by tag, archived; groups, a
known producer. `release-2.tar.gz` has the kinds of files that came since: schemas of typed topics,
transactions that are decided and that are open, offsets of classic groups, settings of groups, ids
of producers, routers, copies in the archive. `tests/releases/making.py` wrote it, and says how.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lamina.api import ProducerStamp, StoreApi
from lamina.config import WalSettings
from lamina.inspect import kinds
from lamina.store.read_only import ReadOnlyStore
from tests.releases import making
from tests.support.directories import opened

RELEASES = Path(__file__).parents[1] / "releases"
ALARMING = {"gap", "quarantined", "clamped"}
SETTINGS = WalSettings(shards=1, segment_events=4)
TOPICS = ("frame", "keratin", "wal", "archived")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return unpacked(tmp_path, 1)


def unpacked(folder: Path, release: int) -> Path:
    with tarfile.open(RELEASES / f"release-{release}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return folder


def answers(store: StoreApi) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for topic in TOPICS:
        start, rows = store.earliest_offset(topic), []
        for batch in store.scan(topic, 0, start):
            offsets = batch.column("offset").to_pylist()
            told = [value.decode() for value in batch.column("value").to_pylist()]
            rows += [list(row) for row in zip(offsets, told, strict=True)]
        found[topic] = {"rows": rows, "earliest": start, "latest": store.latest_offset(topic)}
    return found


def groups(store: Any) -> dict[str, list[int]]:
    return {
        f"{topic}/{group}": [
            each.committed for each in store.describe_group(topic, group).partitions
        ]
        for topic, group in store.groups()
    }


def told(release: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    expected = json.loads((release / "expected.json").read_bytes())
    had = expected.pop("groups")
    for about in expected.values():
        del about["settings"]
    return expected, had


@pytest.mark.parametrize("kind", ["data", "killed"])
def test_everything_of_the_last_release_is_there(release: Path, kind: str) -> None:
    expected, had = told(release)
    archive = str(release / "archive")
    with ReadOnlyStore(str(release / kind), archive=archive, wal=SETTINGS) as reader:
        assert answers(reader) == expected
        assert groups(reader) == had
    for _ in range(2):
        with opened(release / kind, archive=archive, wal=SETTINGS) as store:
            assert answers(store) == expected
            assert groups(store) == had
            assert store.latest_offset("keratin", 1) == 1
            assert not ALARMING & {event.kind for event in store.recovery_report.events}


@pytest.mark.parametrize("kind", ["data", "killed"])
def test_a_store_of_the_last_release_goes_on(release: Path, kind: str) -> None:
    expected, _ = told(release)
    archive = str(release / "archive")
    with opened(release / kind, archive=archive, wal=SETTINGS) as store:
        again = store.append(
            "keratin", [b"idempotent"], partition=0, producer=ProducerStamp(7, 0, 0)
        )
        assert again.base_offset == 10, "the producer is still known"
        for topic in TOPICS:
            ack = store.append(topic, [b"more"], partition=0)
            assert ack.base_offset == expected[topic]["latest"]
        store.maintain()
    with opened(release / kind, archive=archive, wal=SETTINGS) as store:
        for topic, about in answers(store).items():
            assert about["rows"] == [*expected[topic]["rows"], [expected[topic]["latest"], "more"]]
        assert store.recovery_report.of("gap") == []


def test_the_settings_of_the_last_release_are_kept(release: Path) -> None:
    with opened(release / "data", archive=str(release / "archive"), wal=SETTINGS) as store:
        assert store.describe_topic("keratin").settings["retention.ms"] == 10**12
        assert store.describe_topic("archived").settings["remote.storage.enable"]


# ---------------------------------------------------------------- the kinds that came since


@pytest.mark.parametrize("kind", ["data", "killed"])
def test_everything_of_the_second_release_is_there(tmp_path: Path, kind: str) -> None:
    folder = unpacked(tmp_path, 2)
    expected = json.loads((folder / "expected.json").read_bytes())[kind]
    archive = str(folder / "archive")
    for _ in range(2):
        with opened(folder / kind, archive=archive, wal=making.SETTINGS) as store:
            assert making.answers(store) == expected
            assert store.failures() == {}
            assert not ALARMING & {event.kind for event in store.recovery_report.events}
    with ReadOnlyStore(str(folder / kind), archive=archive, wal=making.SETTINGS) as reader:
        for topic, about in expected["topics"].items():
            assert making.about(reader, topic) == about


@pytest.mark.parametrize("kind", ["data", "killed"])
def test_a_store_of_the_second_release_goes_on(tmp_path: Path, kind: str) -> None:
    folder = unpacked(tmp_path, 2)
    with opened(folder / kind, archive=str(folder / "archive"), wal=making.SETTINGS) as store:
        for name in making.FORMATS:
            topic = f"plain-{name}"
            first = 1 if name == "wal" else 0
            again = store.append(topic, [b"idempotent"], partition=1, producer=making.STAMP)
            assert again.base_offset == first, "the producer is still known"
            held = store.group(topic, "billing").poll(9, lease_ms=60_000)
            taken = [each for each in held.column("offset").to_pylist() if each < 13]
            assert 9 not in taken, "it was acked ahead of others"
            typed = [{"id": 4, "what": "later", "count": 2}]
            assert store.append(f"typed-{name}", typed, partition=0).base_offset == 3 + first
        routed = {"value": b"routed again", "tag": b"error"}
        store.append("plain-wal", [routed], partition=0)
        assert making.about(store, "copies-wal")["parts"][0]["latest"] == 3
        for name in ("stored", "decided", "open"):
            claim = store.transactions.init(name, making.MINUTE_MS)
            assert claim.epoch > 0, f"{name} is still known, and its last producer fenced"
        store.maintain()
        assert store.failures() == {}


def test_the_second_release_is_written_as_it_was(tmp_path: Path) -> None:
    """By this state, too: so it is known how it was made, and every kind of file is in it."""
    folder = unpacked(tmp_path / "then", 2)
    making.write(tmp_path / "now")
    told = [(each / "expected.json").read_bytes() for each in (folder, tmp_path / "now")]
    assert told[0] == told[1]
    found = [_kinds(each) for each in (folder, tmp_path / "now")]
    assert found[0] <= found[1]
    newer = {"topic schemas", "transaction", "journal of committed offsets", "ids of producers"}
    assert found[0] > newer | {"settings of groups", "copy of a group", "ledger of gaps"}


def _kinds(folder: Path) -> set[str]:
    found = set()
    for kind in ("data", "killed", "archive"):
        for path in sorted((folder / kind).rglob("*")):
            if path.is_file() and (known := kinds.recognise(str(path), path.read_bytes()[:8])):
                found.add(known.name)
    return found
