"""A topic that is no longer archived: what it has in the archive alone is read as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.errors import ArchiveUnavailable
from lamina.storage.objects import open_objects
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.archive.rig import NEVER, SETTINGS, TOPIC, read, values

COUNT = 60


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_what_is_archived_is_read_after_archiving_was_switched_off(
    tmp_path: Path, format_name: str
) -> None:
    data, archive = str(tmp_path / "data"), str(tmp_path / "archive")
    with Store(data, archive=archive, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format_name, config=SETTINGS)
        for first in range(0, COUNT, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.archive()
        store.alter_topic(TOPIC, {"remote.storage.enable": False})
        before = read(store)
    assert [value for _, value in before] == values(0, COUNT)
    for read_only in (True, False, True):
        with lamina.open(data, read_only=read_only) as opened:
            assert read(opened) == before
            (part,) = opened.describe_topic(TOPIC).partitions
            assert part.archived_segments > 0


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_what_is_archived_is_counted_before_the_first_tick(
    tmp_path: Path, format_name: str, read_only: bool
) -> None:
    data, archive = str(tmp_path / "data"), str(tmp_path / "archive")
    with Store(data, archive=archive, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format_name, config=SETTINGS)
        for first in range(0, COUNT, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.archive()
        (before,) = store.describe_topic(TOPIC).partitions
    assert before.archived_bytes > 0
    opened: Any = ReadOnlyStore(data) if read_only else Store(data, tick_ms=NEVER)
    with opened as store:
        (part,) = store.describe_topic(TOPIC).partitions
        assert (part.archived_segments, part.archived_bytes) == (
            before.archived_segments,
            before.archived_bytes,
        )


@pytest.mark.parametrize("format_name", ["keratin", "wal"])
def test_counting_what_is_archived_does_not_ask_again_and_again_an_archive_that_is_away(
    tmp_path: Path, format_name: str
) -> None:
    data, objects = str(tmp_path / "data"), open_objects("memory://")
    with Store(data, archive=objects, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format_name, config=SETTINGS)
        for first in range(0, COUNT, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.archive()
    asked: list[str] = []

    def away(key: str) -> Any:
        asked.append(key)
        raise ArchiveUnavailable("away")

    objects.read = away  # type: ignore[method-assign]
    with Store(data, archive=objects, tick_ms=NEVER) as store:
        asked.clear()
        for _ in range(5):
            (part,) = store.describe_topic(TOPIC).partitions
            assert part.archived_bytes == 0
        assert len(asked) == 1
