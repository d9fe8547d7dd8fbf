"""File names: what is built is parsed back, what is strange is nobody's, no two are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lamina.errors import InvalidRequest
from lamina.storage import paths
from lamina.storage.paths import GroupFile, ObjectKey, SegmentFile, WalSegmentFile

NUMBERS = st.integers(0, (1 << 63) - 1)
TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,30}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
GROUPS = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12),
    st.sampled_from(["_", "%", "/", "a_b", "%5F", "a/../b", "..", ".", "-0_", "é", "日本", "\0"]),
)
PARSERS: dict[str, Callable[[str], Any]] = {
    "segment": paths.segment_file,
    "wal file": paths.wal_file_index,
    "wal segment": paths.wal_segment_file,
    "transaction": paths.transaction_file,
    "wal topic": paths.wal_topic_id,
    "snapshot": paths.snapshot_number,
    "shard": paths.shard_number,
    "group's copy": paths.archived_group,
    "group": paths.group_file,
    "object": paths.object_key,
    "archived topic": paths.archived_topic,
    "archived ledger": paths.archived_ledger,
    "archived state": paths.archived_state,
    "sink": paths.sink_application,
    "position": paths.position_group,
}


@given(NUMBERS, st.sampled_from(paths.SEGMENT_SUFFIXES))
def test_a_segment_file_is_parsed_back(base_offset: int, suffix: str) -> None:
    file = SegmentFile(base_offset, suffix)
    assert paths.segment_file(file.name) == file


@given(NUMBERS, NUMBERS)
def test_segment_files_sort_as_their_offsets_do(first: int, second: int) -> None:
    names = [SegmentFile(number, "log").name for number in (first, second)]
    assert (names[0] < names[1]) == (first < second)


@given(NUMBERS, st.sampled_from([paths.STAGED, paths.DECIDED]))
def test_a_transactions_file_is_parsed_back(number: int, suffix: str) -> None:
    file = paths.TransactionFile(number, suffix)
    assert paths.transaction_file(file.name) == file


@given(NUMBERS, st.sampled_from(["data", "idx"]))
def test_a_wal_segment_file_is_parsed_back(first_sequence: int, suffix: str) -> None:
    file = WalSegmentFile(first_sequence, suffix)
    assert paths.wal_segment_file(file.name) == file


@given(NUMBERS)
def test_numbered_files_are_parsed_back(number: int) -> None:
    assert paths.wal_file_index(paths.wal_file(number)) == number
    assert paths.snapshot_number(paths.snapshot_file(number)) == number


@given(st.integers(0, (1 << 64) - 1))
def test_a_wal_topics_directory_is_parsed_back(topic_id: int) -> None:
    assert paths.wal_topic_id(paths.wal_topic_directory(topic_id)) == topic_id


@given(st.integers(0, 5000))
def test_a_shards_directory_is_parsed_back(shard: int) -> None:
    assert paths.shard_number(paths.shard_directory(shard)) == shard


@given(TOPICS, st.integers(0, 10_000), GROUPS, st.sampled_from(["snap", "delta"]))
@example("a-1", 2, "b", "snap")
@example("a_b", 0, "c_d", "delta")
def test_a_groups_file_is_parsed_back_and_stays_in_its_directory(
    topic: str, partition: int, group: str, suffix: str
) -> None:
    file = GroupFile(topic, partition, group, suffix)
    assert paths.group_file(file.name) == file
    assert "/" not in file.name
    assert "\0" not in file.name
    assert file.name.isascii()


@given(TOPICS, st.integers(0, 10_000), NUMBERS, st.integers(0, 999), st.integers(0, 1 << 50))
def test_an_object_key_is_parsed_back(
    topic: str, partition: int, base_offset: int, generation: int, epoch: int
) -> None:
    key = ObjectKey(topic, partition, base_offset, generation, epoch)
    assert paths.object_key(key.name) == key


def test_the_keys_of_an_epoch_are_of_no_other_epoch_and_of_no_store_without_a_cluster() -> None:
    numbers = range(4)
    keys = {
        ObjectKey("t", 0, 7, generation, epoch).name for generation in numbers for epoch in numbers
    }
    assert len(keys) == 16
    assert ObjectKey("t", 0, 7).name == "data/t/0/00000000000000000007.seg"
    assert ObjectKey("t", 0, 7, 2).name == "data/t/0/00000000000000000007.2.seg"
    assert ObjectKey("t", 0, 7, 0, 3).name == "data/t/0/00000000000000000007.3.0.seg"
    for name in ("7.0.seg", "7.0.0.seg", "7.0.1.seg", "7.01.1.seg", "7.1.01.seg", "7.1.1.1.seg"):
        assert paths.object_key(f"data/t/0/0000000000000000000{name}") is None


@given(TOPICS, st.integers(0, 10_000))
def test_the_key_of_a_ledgers_copy_is_parsed_back(topic: str, partition: int) -> None:
    key = paths.archive_ledger(topic, partition)
    assert paths.archived_ledger(key) == (topic, partition)
    assert paths.archived_ledger(paths.archive_group(topic, partition, "ledger")) is None
    assert paths.archived_ledger(f"data/{topic}/0{partition}/ledger.json") is None


@given(TOPICS, st.integers(0, 10_000), GROUPS)
@example("a", 0, "b.json")
def test_the_key_of_a_groups_copy_is_parsed_back(topic: str, partition: int, group: str) -> None:
    key = paths.archive_group(topic, partition, group)
    assert paths.archived_group(key) == (topic, partition, group)
    assert paths.group_file(key.rpartition("/")[2]) is None
    assert len(key.split("/")) == 5


NEAR = st.sampled_from(["a", "a-0", "a-1", "a.b", "a_b", "a-b", "b", "A"])
NEAR_GROUPS = st.sampled_from(["a", "b", "a_b", "a-b", "a%5Fb", "A", "é", "e\u0301", "0_a", "%"])
TRIPLES = st.one_of(
    st.tuples(NEAR, st.integers(0, 12), NEAR_GROUPS), st.tuples(TOPICS, st.integers(0, 99), GROUPS)
)


@given(st.lists(TRIPLES, min_size=2, max_size=30, unique=True))
@example([("a", 1, "b"), ("a-1", 1, "b"), ("a", 11, "b")])
@example([("a", 0, "a_b"), ("a", 0, "a%5Fb")])
def test_no_two_groups_of_any_partitions_share_a_file(triples: list[tuple[str, int, str]]) -> None:
    names = {GroupFile(*triple, "snap").name for triple in triples}
    assert len(names) == len(triples)


# ---------------------------------------------------------------- stray names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "lost+found",
        ".DS_Store",
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "00000000000000000000.log ",
        "00000000000000000000.log\n",
        "00000000000000000000.txt",
        "00000000000000000000.log.tmp",
        "99999999999999999999.log",
        "٠" * 20 + ".log",
        "-0000000000000000001.log",
        "wal-.log",
        "wal-01.log",
        "wal--1.log",
        "wal-²3.log",
        "wal-٣.log",
        f"wal-{'9' * 5000}.log",
        "seg-1.data",
        "seg-99999999999999999999.data",
        f"seg-{1 << 63:020}.data",
        "seg-" + "٠" * 20 + ".idx",
        "0000000000000A0B",
        "snapshot-01.bin",
        "snapshot-٣.bin",
        "shard-1",
        "shard-٣٣",
        "shard-001",
        "a-0_.snap",
        "a-00_g.snap",
        "a_g.snap",
        "a-0_g%2.snap",
        "a-0_g%5f.snap",
        "a-0_%41.snap",
        "a-0_%FF.snap",
        "a-٣_g.snap",
        "data/../0/00000000000000000000.seg",
        "data/é/0/00000000000000000000.seg",
        "of-",
        "on-a.json",
        "of-%FF",
        "of-%FF.json",
        "of-%61",
        "of-%61.json",
        "data/a",
        "other/a/0/state/g",
        "data/../0/state/g",
    ],
    ids=lambda name: ascii(name)[:40],
)
def test_a_stray_name_is_none_of_ours(name: str) -> None:
    assert {kind: parse(name) for kind, parse in PARSERS.items()} == dict.fromkeys(PARSERS)


@pytest.mark.parametrize(
    "name",
    [
        "data/a/00/00000000000000000000.seg",
        "data/a/0/0.seg",
        "data/a/0/99999999999999999999.seg",
        f"data/a/{'9' * 5000}/00000000000000000000.seg",
        f"data/a/{'9' * 5000}/ledger.json",
        f"data/a/{'9' * 5000}/state/g.json",
        "data/a/٣/ledger.json",
        "data/a/0/state/g/more",
        "data/a/x/state/g",
        "data/a/00/state/g",
        "data/a/0/other/g",
        "data/a/0/state/%FF",
        "data/a/0/state/%61",
        "data/a/topic.json",
    ],
    ids=lambda name: ascii(name)[:40],
)
def test_a_stray_key_of_a_topic_names_the_topic_and_nothing_else(name: str) -> None:
    found = {kind: parse(name) for kind, parse in PARSERS.items()}
    assert found == dict.fromkeys(PARSERS) | {"archived topic": "a"}


@given(TOPICS, st.integers(0, 10_000), GROUPS)
def test_an_archived_file_of_a_partition_is_parsed_back(
    topic: str, partition: int, name: str
) -> None:
    key = paths.archive_state(topic, partition, name)
    assert paths.archived_state(key) == (topic, partition, name)
    assert paths.archived_topic(key) == topic
    assert key.startswith(paths.archive_partition(topic, partition) + "/")


@given(GROUPS)
def test_a_sinks_directory_and_a_position_are_parsed_back(name: str) -> None:
    directory, position = paths.sink_directory(name), paths.position_file(name)
    assert directory.startswith("sink/")
    assert paths.sink_application(directory.removeprefix("sink/")) == name
    assert position.startswith("positions/")
    assert paths.position_group(position.removeprefix("positions/")) == name


def test_a_position_of_no_group_is_none_of_ours() -> None:
    assert [paths.position_group(name) for name in ("of-.json", "of-a", "a.json")] == [None] * 3


def test_the_longest_names_of_applications_and_groups_leave_room() -> None:
    application = "a" * (paths.FILE_NAME_MAX - len("of-"))
    assert paths.sink_directory(application).endswith(application)
    group = "g" * (paths.FILE_NAME_MAX - len("of-.json.taken"))
    assert paths.position_file(group).endswith(f"{group}.json")
    for name, refusing in ((application, paths.sink_directory), (group, paths.position_file)):
        for refused in (f"{name}a", "", "\ud800"):
            with pytest.raises(InvalidRequest, match="is refused"):
                refusing(refused)


@pytest.mark.parametrize(
    "name", ["0/state/%5f", "00/state/g", "0/state/%FF", "0/states/g", "0/g", "٣/state/g"]
)
def test_a_stray_key_is_of_no_groups_copy(name: str) -> None:
    assert paths.archived_group(f"data/a/{name}.json") is None
    assert paths.archived_group("data/../0/state/g.json") is None


@given(st.text(max_size=60), st.sampled_from(sorted(PARSERS)))
def test_any_name_gives_a_value_or_none_and_never_an_exception(name: str, kind: str) -> None:
    for given_name in (name, f"{name}.log", f"wal-{name}.log", f"seg-{name}.data", f"{name}.snap"):
        parsed = PARSERS[kind](given_name)
        assert parsed is None or getattr(parsed, "name", given_name) == given_name


# ---------------------------------------------------------------- names that users give


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "../a",
        "a\0",
        "\0",
        "a" * 250,
        "é",
        "a b",
        "a\n",
        "a%",
        "٣",
        "a:",
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_a_topic_name_that_could_leave_the_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="topic name"):
        paths.topic_name(name)


@pytest.mark.parametrize("name", ["a", "...", "A-b_c.9", "-", "_", "a" * 249])
def test_an_allowed_topic_name_is_returned(name: str) -> None:
    assert paths.topic_name(name) == name


@pytest.mark.parametrize("group", ["", "\ud800", "g" * 250, "é" * 60])
def test_a_group_whose_file_could_not_be_named_is_refused(group: str) -> None:
    with pytest.raises(InvalidRequest, match="group name"):
        GroupFile("orders", 0, group, "snap")


def test_the_longest_name_leaves_room_for_a_replacements_temporary_one() -> None:
    room = 255 - len(".tmp") - len("t-0_.delta")
    assert len(GroupFile("t", 0, "g" * room, "delta").name + ".tmp") == 255
    with pytest.raises(InvalidRequest):
        GroupFile("t", 0, "g" * (room + 1), "delta")
