"""Directories of the release before this one are opened by this one: nothing is missing.

`tests/releases/release-1.tar.gz` was written by that release: a store that was closed (`data`), the
same one as a kill left it (`killed`), what it had archived, and what it answered (`expected.json`).
Topics of all formats, rolled, trimmed, deleted from by tag, archived; groups, a known producer.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lamina.api import ProducerStamp, StoreApi
from lamina.config import WalSettings
from lamina.store.read_only import ReadOnlyStore
from tests.support.directories import opened

GOLDEN = Path(__file__).parents[1] / "releases" / "release-1.tar.gz"
SETTINGS = WalSettings(shards=1, segment_events=4)
TOPICS = ("frame", "keratin", "wal", "archived")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


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
            alarming = {"gap", "quarantined", "clamped"}
            assert not alarming & {event.kind for event in store.recovery_report.events}


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
