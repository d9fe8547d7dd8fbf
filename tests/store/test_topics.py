"""Topics: named, created, altered, deleted and created again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lamina.errors import (
    Closed,
    InvalidRequest,
    Poisoned,
    RecordsMissing,
    StorageFull,
    TopicExists,
    UnknownTopic,
)
from lamina.storage.files import LocalFile, LocalFiles
from tests.support.directories import FORMATS, copied, opened, read_only, values

BOTH = pytest.mark.parametrize("format_name", FORMATS)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/etc", "../up", "a\\b", "a b", "a\0b", "a\n", "ü", "x" * 250, "%2e%2e"],
)
def test_a_name_that_could_leave_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "data") as store:
        with pytest.raises(InvalidRequest, match="topic name"):
            store.create_topic(name)
        assert store.topics() == []
        assert not (tmp_path / "data/topics").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize("name", ["a", "...", "A.b_c-9", "x" * 249, "0"])
def test_other_names_are_kept(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic(name)
        store.append(name, [b"a"])
    with opened(tmp_path / "data") as store:
        assert store.topics() == [name]
        assert values(store, name) == [b"a"]


@BOTH
def test_a_topic_is_created_once(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, partitions=2)
        store.append("t", [b"a"], partition=1)
        with pytest.raises(TopicExists, match="exists already") as refused:
            store.create_topic("t", format=format_name)
        assert isinstance(refused.value, InvalidRequest)
        assert (refused.value.topic, refused.value.difference) == ("t", "")
        assert values(store, "t", 1) == [b"a"]
        assert len(store.describe_topic("t").partitions) == 2


@BOTH
def test_a_topic_that_may_exist_is_left_as_it_is(tmp_path: Path, format_name: str) -> None:
    asked = {"format": format_name, "partitions": 2, "exist_ok": True}
    with opened(tmp_path / "data") as store:
        store.create_topic("t", config={"retention.ms": 7000}, **asked)
        store.append("t", [b"a"], partition=1)
        before = store.describe_topic("t")
        store.create_topic("t", config={"retention.ms": 9000}, **asked)
        assert store.describe_topic("t") == before
        with pytest.raises(InvalidRequest, match="unknown topic setting"):
            store.create_topic("t", config={"colour": "red"}, **asked)
    with opened(tmp_path / "data") as store:
        store.create_topic("t", **asked)
        assert values(store, "t", 1) == [b"a"]
        store.delete_topic("t")
        store.create_topic("t", **asked)
        assert values(store, "t", 1) == []


@BOTH
def test_a_topic_that_may_exist_must_be_the_same(tmp_path: Path, format_name: str) -> None:
    other = next(each for each in FORMATS if each != format_name)
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        for asked, difference in (
            ({"format": format_name, "partitions": 2}, "partitions 1, not 2"),
            ({"format": other}, f"format {format_name}, not {other}"),
        ):
            with pytest.raises(TopicExists, match=difference) as refused:
                store.create_topic("t", exist_ok=True, **asked)
            assert (refused.value.topic, refused.value.difference) == ("t", difference)
        assert store.format_of("t") == (format_name, 1)


def test_a_topic_whose_deletion_failed_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
        monkeypatch.setattr(type(store._boot), "has_deleted", lambda _boot, _name: True)
        with pytest.raises(Poisoned, match="delete it again"):
            store.create_topic("t", exist_ok=True)


def test_a_store_that_only_reads_makes_no_topic_that_may_exist(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
    with read_only(tmp_path / "data") as reader, pytest.raises(InvalidRequest, match="read"):
        reader.create_topic("t", exist_ok=True)


def test_what_cannot_be_created_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        for wrong in (
            {"format": "parquet"},
            {"partitions": 0},
            {"partitions": -1},
            {"config": {"retention.hours": 1}},
            {"config": {"segment.bytes": "many"}},
            {"config": {"segment.bytes": 1}},
        ):
            with pytest.raises(InvalidRequest):
                store.create_topic("t", **wrong)
        assert store.topics() == []
    with opened(tmp_path / "data") as store:
        assert store.topics() == []


def test_an_unknown_setting_names_the_one_that_was_meant(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        with pytest.raises(InvalidRequest, match=r"did you mean 'retention\.ms'"):
            store.create_topic("t", config={"retention.msec": 1})
        store.create_topic("t")
        with pytest.raises(InvalidRequest, match="unknown topic setting"):
            store.alter_topic("t", {"colour": "red"})


@pytest.mark.parametrize(
    "method", ["append", "scan", "fetch", "trim", "describe_topic", "delete_topic"]
)
def test_a_topic_is_never_made_by_a_typo(tmp_path: Path, method: str) -> None:
    arguments = {"append": ([b"a"],), "fetch": (0, 0), "trim": (0, 0)}.get(method, ())
    with opened(tmp_path / "data") as store:
        store.create_topic("orders")
        with pytest.raises(UnknownTopic, match="there are: orders"):
            getattr(store, method)("order", *arguments)


@pytest.mark.parametrize("partition", [-1, 2, 10**9])
def test_a_partition_that_is_not_there_is_refused(tmp_path: Path, partition: int) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        for call in (
            lambda: store.append("t", [b"a"], partition=partition),
            lambda: store.fetch("t", partition, 0),
            lambda: store.roll("t", partition),
        ):
            with pytest.raises(UnknownTopic, match="partitions 0 to 1"):
                call()


@BOTH
def test_a_topic_tells_what_it_is(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"retention.ms": "5000"})
        store.append("t", [b"a", b"b"])
        store.roll("t")
        about = store.describe_topic("t")
        assert (about.name, about.format, about.epoch) == ("t", format_name, 1)
        assert about.settings["retention.ms"] == 5000
        assert about.settings["segment.bytes"] == 64 << 20
        (partition,) = about.partitions
        assert (partition.earliest_offset, partition.durable_offset) == (0, 2)
        assert (partition.written_offset, partition.segments) == (2, 2)
        assert partition.size_bytes > 2


@BOTH
def test_altered_settings_hold_at_once_and_after_a_kill(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"retention.ms": 77})
        store.alter_topic("t", {"max.message.bytes": 10})
        with pytest.raises(InvalidRequest, match=r"over max\.message\.bytes 10"):
            store.append("t", [b"x" * 11])
        killed = copied(tmp_path / "data")
        with pytest.raises(InvalidRequest):
            store.alter_topic("t", {"max.message.bytes": 20, "retention.ms": "soon"})
        with pytest.raises(InvalidRequest, match=r"over max\.message\.bytes 10"):
            store.append("t", [b"x" * 11])
    with opened(killed) as store:
        settings = store.describe_topic("t").settings
        assert (settings["max.message.bytes"], settings["retention.ms"]) == (10, 77)


@BOTH
def test_a_deleted_topic_is_gone_and_its_epoch_grows(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        for epoch in (1, 2, 3):
            store.create_topic("t", format=format_name)
            assert store.describe_topic("t").epoch == epoch
            assert store.append("t", [b"a"]).parts[0].base_offset == 0
            store.delete_topic("t")
            assert store.topics() == []
            assert sorted(each.name for each in (path / "topics/t").iterdir()) == ["topic.json"]
            with pytest.raises(UnknownTopic):
                store.append("t", [b"a"])
    with opened(path) as store:
        assert store.topics() == []
        store.create_topic("t", format=format_name, partitions=2)
        assert store.describe_topic("t").epoch == 4
        assert values(store) == []


@BOTH
def test_a_topic_changes_its_format_when_it_is_created_again(
    tmp_path: Path, format_name: str
) -> None:
    other = next(name for name in FORMATS if name != format_name)
    with opened(tmp_path / "data") as store, read_only(tmp_path / "data") as beside:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"])
        store.flush()
        assert values(beside) == [b"a"]
        store.delete_topic("t")
        with pytest.raises(UnknownTopic):
            values(beside)
        store.create_topic("t", format=other)
        store.append("t", [b"b", b"c"])
        store.flush()
        assert values(beside) == [b"b", b"c"]


@BOTH
def test_a_deletion_that_was_cut_short_is_finished(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"])
        before = copied(path)
        store.delete_topic("t")
    (before / "topics/t/topic.json").write_bytes((path / "topics/t/topic.json").read_bytes())
    with read_only(before) as alone:
        assert alone.topics() == []
    with opened(before) as store:
        assert store.topics() == []
        assert store.recovery_report.of("deletion finished")
    assert [each.name for each in (before / "topics/t").iterdir()] == ["topic.json"]


@BOTH
def test_a_creation_that_was_cut_short_never_happened(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    opened(path).close()
    (path / "topics/t/0/segments").mkdir(parents=True)
    with opened(path) as store:
        assert store.topics() == []
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"])
        assert store.describe_topic("t").epoch == 1


@BOTH
def test_a_reader_that_holds_a_segment_finishes_when_the_topic_is_deleted(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b", b"c"])
        store.roll("t")
        store.append("t", [b"d"])
    with opened(tmp_path / "data") as store:
        reader = store.scan("t", max_records=1)
        fresh = store.scan("t", max_records=1)
        assert next(reader).column("value").to_pylist() == [b"a"]
        sealed = store._partitions["t", 0].layout.sealed[0]
        store.delete_topic("t")
        assert [batch.column("value")[0].as_py() for batch in (next(reader), next(reader))] == [
            b"b",
            b"c",
        ]
        sealed.let_go()
        with pytest.raises(RecordsMissing) as missing:
            next(fresh)
        assert missing.value.reason == "deleted"


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path / "data")
    store.create_topic("t")
    store.close()
    store.close()
    for call in (
        store.topics,
        lambda: store.append("t", [b"a"]),
        lambda: store.fetch("t", 0, 0),
        lambda: store.create_topic("u"),
        lambda: store.alter_topic("t", {}),
        store.flush,
        store.maintain,
    ):
        with pytest.raises(Closed, match="closed"):
            call()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_topic_that_could_not_be_made_whole_leaves_nothing_that_ticks_speak_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        create = LocalFiles.create

        def is_full(files: LocalFiles, name: str) -> LocalFile:
            if "/t/1/" in name:
                raise OSError(errno.ENOSPC, "no space")
            return create(files, name)

        with monkeypatch.context() as filling:
            filling.setattr(LocalFiles, "create", is_full)
            with pytest.raises(StorageFull):
                store.create_topic("t", format=format_name, partitions=2)
        assert store.segmented() == []
        store.create_topic("other", format=format_name)
        store.append("other", b"x")
        store.maintain()
        assert '"t"' not in (path / "meta/checkpoint.json").read_text()
        store.create_topic("t", format=format_name, partitions=2)
        store.append("t", b"first", partition=0)
        assert values(store) == [b"first"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_name_whose_deletion_failed_is_not_made_again_before_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"old"] * 5)
        store.maintain()
        sync = LocalFiles.sync_directory

        def fails(files: LocalFiles, directory: str) -> None:
            if directory.endswith("/topics/t"):
                raise OSError(errno.EIO, "input/output error")
            sync(files, directory)

        with monkeypatch.context() as failing:
            failing.setattr(LocalFiles, "sync_directory", fails)
            with pytest.raises(Poisoned):
                store.delete_topic("t")
        with pytest.raises(Poisoned, match="delete it again"):
            store.create_topic("t", format=format_name)
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", b"new", acks=1)
        store.maintain()
        with read_only(path) as beside:
            assert values(beside) == [b"new"]
