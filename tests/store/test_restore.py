"""An archive alone brings a topic back: offsets, times, headers, settings, gaps, group files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lamina
from lamina.cli.main import app
from lamina.errors import InvalidRequest
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.opening import Boot
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import (
    DATA,
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    memory,
    numbered,
    opened,
    read,
    table,
    values,
)

BACK = "/back/data"
ROWS: list[dict[str, Any]] = [
    {
        "key": b"",
        "value": None,
        "headers": [{"key": "a", "value": None}, {"key": "a", "value": b""}],
    },
    {"key": None, "value": b"", "timestamp": -5},
    {"key": b"k", "value": b"v", "timestamp": NOW_MS + 77},
]


def boot(files: Any, data: str = BACK) -> Boot:
    return Boot(files, data, lambda: NOW_MS)


@pytest.mark.parametrize("format_name", ["keratin", "frame"])
def test_a_topic_comes_back_whole_on_an_empty_machine(format_name: str) -> None:
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        config = SETTINGS | {"max.message.bytes": 4321}
        store.create_topic(TOPIC, format=format_name, partitions=2, config=config)
        rows = ROWS if format_name == "keratin" else [{"key": b"k", "value": b"v" * 40}] * 2
        for _ in range(40):
            store.append(TOPIC, rows, partition=1)
        store.trim(TOPIC, 1, 20)
        store.roll(TOPIC, 1)
        group = store.group(TOPIC, "billing")
        committed = store.earliest_offset(TOPIC, 1) + 10
        group.commit(committed, 1)
        group.ack([committed + 3, committed + 5], partition=1)
        store.archive()
        before = store.describe_topic(TOPIC)
        expected, gaps = table(store.scan(TOPIC, 1)), store.gaps(TOPIC, 1)
        earliest = store.earliest_offset(TOPIC, 1)
        assert earliest > 0
    new = SimulatedFiles()
    (done,) = restore(objects, boot(new))
    assert (done.topic, done.records) == (TOPIC, expected.num_rows)
    with opened(new, None, BACK) as store:
        after = store.describe_topic(TOPIC)
        assert (after.settings, after.epoch, after.format) == (
            *(before.settings, before.epoch, before.format),
        )
        assert table(store.scan(TOPIC, 1)).equals(expected)
        assert store.gaps(TOPIC, 1) == gaps
        assert store.earliest_offset(TOPIC, 1) == earliest
        assert store.recovery_report.events == []
        back = store.group(TOPIC, "billing")
        assert back.committed(1) == committed
        assert back.ack([committed + 3, committed + 4], partition=1) == 1, "the other was acked"
        end = store.latest_offset(TOPIC, 1)
        assert store.append(TOPIC, [b"next"], partition=1).base_offset == end
        assert store.latest_offset(TOPIC, 0) == 0


def test_a_restored_store_goes_on_archiving_where_the_old_one_ended() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 30))
        store.roll(TOPIC)
        store.archive()
    new = SimulatedFiles()
    restore(objects, boot(new))
    with opened(new, objects, BACK) as store:
        store.append(TOPIC, values(30, 10))
        store.roll(TOPIC)
        store.archive()
        assert store.tier_status()[0].last_error == ""
        assert read(store) == numbered(0, 40)

    assert archived(objects) == numbered(0, 40)


def test_a_restore_that_is_cut_off_leaves_no_topic_and_can_be_done_again() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 30))
        store.roll(TOPIC)
        store.archive()
    new = SimulatedFiles()
    disks = []
    new.before = lambda kind, path: disks.append(new.snapshot())
    restore(objects, boot(new))
    new.before = None
    for number, disk in enumerate(disks):
        half = disk.crash(("dropped", "kept", 3)[number % 3])
        if half.exists(f"{BACK}/meta/broker.id"):
            with opened(half, None, BACK) as store:
                if TOPIC in store.topics():
                    assert read(store) == numbered(0, 30)
                    continue
        restore(objects, boot(half))
        with opened(half, None, BACK) as store:
            assert read(store) == numbered(0, 30)


def test_what_is_there_is_not_overwritten() -> None:
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 30))
        store.archive()
        with pytest.raises(InvalidRequest, match="exists in"):
            restore(objects, boot(files, DATA))
        with pytest.raises(InvalidRequest, match="has no topic 'nothing'"):
            restore(objects, boot(files, DATA), ["nothing"])


def test_the_commands_show_clean_rebuild_and_restore(tmp_path: Path) -> None:
    archive, data = str(tmp_path / "archive"), str(tmp_path / "data")
    with Store(data, archive=archive) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 30))
        store.roll(TOPIC)
        store.archive()
    objects = DirectoryObjects(LocalFiles(), archive)
    stray = f"data/{TOPIC}/0/{999:020}.seg"
    objects.create(stray, b"left by a crash")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["tier", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert json.loads(run("show", archive, "--json"))["end_offset"] == 30
    assert stray not in run("orphans", archive), "it may be an upload under way"
    assert stray in run("orphans", archive, "--age-ms", "0")
    assert objects.read(stray).data == b"left by a crash", "a dry run removes nothing"
    assert stray in run("orphans", archive, "--age-ms", "0", "--execute")
    assert run("orphans", archive, "--age-ms", "0") == ""
    objects.delete(f"data/{TOPIC}/0/manifest.json")
    run("rebuild", archive, TOPIC)
    with lamina.open(f"file://{archive}", read_only=True) as reader:
        assert read(reader) == numbered(0, 30)
    back = str(tmp_path / "back")
    assert "30 records" in run("restore", archive, back)
    with lamina.open(back) as again:
        assert read(again) == numbered(0, 30)
    with pytest.raises(InvalidRequest, match="read_only=True"):
        lamina.open(f"file://{archive}")
