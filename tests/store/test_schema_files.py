"""The file of a topic's schemas when it is damaged, gone, or somebody else's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import lamina
from lamina.api import TopicSchema
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import topic_schemas
from lamina.inspect.kinds import verify_file
from lamina.storage import paths
from lamina.storage.files import LocalFiles
from lamina.storage.objects import Objects, open_objects
from lamina.store.opening import Boot
from lamina.store.restore import restore
from tests.store.test_typed_topics import ROWS, WIDER, Order, opened, rows

NAMES = {"keratin": "orders", "frame": "framed", "wal": "logged"}
DAMAGES = {
    "bit": lambda raw: bytes([raw[0], raw[1] ^ 4]) + raw[2:],
    "cut": lambda raw: raw[:-9],
    "empty": lambda raw: b"",
    "foreign": lambda raw: b"somebody else's",
    "gone": lambda raw: None,
}


def made(path: Path, archive: Objects) -> dict[str, list[TopicSchema]]:
    with opened(path, archive=archive) as store:
        for format_name, name in NAMES.items():
            config = {"remote.storage.enable": True}
            store.create_topic(name, format=format_name, schema=Order, config=config)
            store.append(name, ROWS)
            store.set_schema(name, WIDER)
        store.archive()
        return {name: store.schemas(name) for name in NAMES.values()}


def spoil(file: Path, damage: str) -> bytes | None:
    """Damages a file; returns what is there afterwards."""
    spoiled = DAMAGES[damage](file.read_bytes())
    if spoiled is None:
        file.unlink()
    else:
        file.write_bytes(spoiled)
    return spoiled


def kept(path: Path) -> list[bytes]:
    return [each.read_bytes() for each in (path / "quarantine").rglob("schemas.json.*")]


@pytest.mark.parametrize("format_name", list(NAMES))
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_the_archive_s_copy_takes_the_place_of_a_file_that_is_damaged_or_gone(
    tmp_path: Path, damage: str, format_name: str
) -> None:
    archive, name, path = open_objects("memory://"), NAMES[format_name], tmp_path / "data"
    written = made(path, archive)
    file = path / f"topics/{name}/schemas.json"
    sound = file.read_bytes()
    spoiled = spoil(file, damage)
    with lamina.open(str(path), read_only=True, archive=archive) as reader:
        assert reader.schemas(name) == written[name]
        assert rows(reader, topic=name, version=1) == ROWS.to_pylist()
    assert (file.read_bytes() if file.exists() else None) == spoiled, "a reader changes nothing"
    with opened(path, archive=archive) as store:
        assert store.schemas(name) == written[name]
        (event,) = store.recovery_report.of("rebuilt")
        assert event.path == str(file)
        assert (event.kept_in is None) == (spoiled is None)
        assert file.read_bytes() == sound
        assert {each: store.schemas(each) for each in written} == written
    assert kept(path) == ([] if spoiled is None else [spoiled])
    told = json.loads((path / "meta/recovery.json").read_bytes())["events"]
    assert str(file) in [each["path"] for each in told]
    with opened(path, archive=archive) as store:
        assert store.recovery_report.of("rebuilt") == []


def test_damage_is_mended_while_the_store_is_open_and_never_reaches_the_archive(
    tmp_path: Path,
) -> None:
    archive, path = open_objects("memory://"), tmp_path / "data"
    written = made(path, archive)["orders"]
    key = paths.archive_topic_schemas("orders")
    sound = archive.read(key).data
    file = path / "topics/orders/schemas.json"
    with opened(path, archive=archive) as store:
        spoil(file, "cut")
        store.append("orders", [b"not typed"])
        store.roll("orders")
        store.archive()
        assert archive.read(key).data == sound
        assert store.set_schema("orders", WIDER) == written[-1]
        assert file.read_bytes() == sound


def test_a_flipped_bit_is_turned_back_without_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("orders", schema=Order)
        written = store.schemas("orders")
    file = path / "topics/orders/schemas.json"
    sound = file.read_bytes()
    spoiled = spoil(file, "bit")
    with opened(path) as store:
        assert store.schemas("orders") == written
    assert file.read_bytes() == sound
    assert kept(path) == [spoiled]


def test_damage_without_a_copy_is_told_and_stays_until_somebody_moves_it_away(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS)
    file = path / "topics/orders/schemas.json"
    spoiled = spoil(file, "cut")
    assert len(verify_file(str(file)) or []) == 1
    with opened(path) as store:
        (event,) = store.recovery_report.of("note")
        assert event.path == str(file)
        with pytest.raises(CorruptData, match=r"schemas\.json"):
            store.schemas("orders")
        with pytest.raises(CorruptData, match=r"schemas\.json"):
            store.set_schema("orders", Order)
        assert file.read_bytes() == spoiled
        file.unlink()
        store.set_schema("orders", Order)
        assert rows(store) == ROWS.to_pylist()


def test_the_file_of_another_topic_is_set_aside_before_a_schema_replaces_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    file = path / "topics/orders/schemas.json"
    with opened(path) as store:
        store.create_topic("orders", schema=Order)
        mine = topic_schemas.decode(file.read_bytes())
        others = topic_schemas.encode(dataclasses.replace(mine, created_ms=1))
        file.write_bytes(others)
        assert store.schemas("orders") == []
        store.set_schema("orders", WIDER)
        store.set_schema("orders", WIDER, compatibility="FULL")
    assert kept(path) == [others]


def test_a_copy_of_an_older_topic_of_the_name_is_not_taken(tmp_path: Path) -> None:
    archive, path = open_objects("memory://"), tmp_path / "data"
    made(path, archive)
    with opened(path, archive=archive) as store:
        store.delete_topic("orders")
        store.create_topic("orders", config={"remote.storage.enable": True})
        assert store.schemas("orders") == []
        assert not (path / "topics/orders/schemas.json").exists()


def test_a_newer_file_is_refused_and_stays_and_the_store_opens(tmp_path: Path) -> None:
    archive, path = open_objects("memory://"), tmp_path / "data"
    made(path, archive)
    file = path / "topics/orders/schemas.json"
    newer = file.read_bytes().replace(b'{"version": 1', b'{"version": 2')
    file.write_bytes(newer)
    with opened(path, archive=archive) as store:
        with pytest.raises(NewerFormat):
            store.schemas("orders")
        store.archive()
        assert len(store.schemas("logged")) == 2
    assert file.read_bytes() == newer


@pytest.mark.parametrize("format_name", list(NAMES))
@pytest.mark.parametrize("damage", ["bit", "cut", "foreign", "gone"])
def test_a_restore_brings_damaged_schemas_back_or_says_that_it_cannot(
    tmp_path: Path, damage: str, format_name: str
) -> None:
    """A restore that ended well once left a topic whose records nobody could read as columns."""
    archive, name = open_objects("memory://"), NAMES[format_name]
    written = made(tmp_path / "data", archive)[name]
    key = paths.archive_topic_schemas(name)
    kept_copy = archive.read(key)
    spoiled = DAMAGES[damage](kept_copy.data)
    if spoiled is None:
        archive.delete(key)
    else:
        archive.replace(key, spoiled, kept_copy.etag)
    boot = Boot(LocalFiles(), str(tmp_path / "back"), lambda: 0)
    (done,) = restore(archive, boot, [name])
    with opened(tmp_path / "back", archive=archive) as store:
        if damage == "bit":
            assert (done.schema_problem, store.schemas(name)) == ("", written)
        elif damage == "gone":  # no file tells that there ever was one
            assert (done.schema_problem, store.schemas(name)) == ("", [])
        else:
            assert done.schema_problem
            with pytest.raises(CorruptData, match=r"schemas\.json"):
                store.schemas(name)
            with pytest.raises(CorruptData, match=r"schemas\.json"):
                store.set_schema(name, WIDER)
