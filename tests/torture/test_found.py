"""What the fault matrix found in Lamina, each as the smallest case: see docs/reliability.md."""

from __future__ import annotations

import pytest

from lamina.errors import LaminaError
from lamina_torture.promises import read
from lamina_torture.scribe import DATA, open_store
from lamina_torture.simulated import SimulatedFiles

TOPIC = "t"


def logs(files: SimulatedFiles) -> list[str]:
    return [path for path in files.contents() if path.endswith(".log") and "/segments/" in path]


def emptied(files: SimulatedFiles, path: str) -> None:
    file = files.open(path)
    file.truncate(0)
    file.sync()


def filled(format_name: str) -> SimulatedFiles:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"0", b"1"])
        store.roll(TOPIC)
        store.append(TOPIC, [b"2"])
        store.roll(TOPIC)
        store.append(TOPIC, [b"3", b"4"])
    assert len(logs(files)) == 3
    return files


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_sealed_log_that_is_empty_is_a_gap_and_reading_it_ends(format_name: str) -> None:
    """F12/lying-sync: the scan asked an emptied file for ever more bytes."""
    files = filled(format_name)
    emptied(files, logs(files)[1])
    with open_store(files) as store:
        assert list(read(store, TOPIC)) == [0, 1, 3, 4]
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps(TOPIC)] == [(2, 3, "lost")]


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_reading_a_log_that_was_cut_while_it_is_open_ends(format_name: str) -> None:
    """F12/lying-sync: the same, without an opening that settles it before anybody reads."""
    files = filled(format_name)
    steps: list[str] = []

    def count(kind: str, path: str) -> None:
        steps.append(kind)
        assert len(steps) < 10_000, "it asks for ever more bytes"

    with open_store(files) as store:
        path = logs(files)[1]
        file = files.open(path)
        file.truncate(files.size(path) - 1)
        files.before = count
        assert list(read(store, TOPIC)) == [0, 1, 3, 4]
        files.before = None


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_an_active_log_that_is_empty_is_a_gap_and_the_store_opens(format_name: str) -> None:
    """F12/lying-sync: the manifest refused the empty segment, with an error that was not ours."""
    files = filled(format_name)
    emptied(files, logs(files)[2])
    for _ in range(2):
        with open_store(files) as store:
            assert list(read(store, TOPIC)) == [0, 1, 2]
            gaps = [(gap.first, gap.end, gap.reason) for gap in store.gaps(TOPIC)]
            assert gaps == [(3, 5, "lost")]
            assert store.latest_offset(TOPIC) == 5
    with open_store(files) as store:
        assert store.append(TOPIC, [b"5"]).base_offset == 5
        assert DATA in store.path
        assert list(read(store, TOPIC)) == [0, 1, 2, 5]


def test_segments_left_by_a_copy_that_was_taken_back_cost_nothing() -> None:
    """F11/for-ever: behind the hole they left, the WAL's own records were said to be lost."""
    files = SimulatedFiles()
    store = open_store(files, shards=1)
    store.create_topic(TOPIC, format="wal")
    for number in range(12):
        store.append(TOPIC, [b"%d" % number])
    before = files.snapshot().restart()
    store.maintain()
    store.close()
    copied = {path.rsplit("/", 1)[1]: data for path, data in files.contents().items()}
    copied = {name: data for name, data in copied.items() if name.startswith("seg-")}
    assert len(copied) == 6
    folder = f"{DATA}/segments/{1:016x}"
    before.make_directory(folder)
    for name, data in copied.items():
        if name.split(".")[0] != min(copied).split(".")[0]:
            before.replace(f"{folder}/{name}", data)
    for _ in range(2):
        with open_store(before, shards=1) as store:
            assert list(read(store, TOPIC)) == list(range(1, 13))
            assert store.gaps(TOPIC) == ()
            store.maintain()
            assert list(read(store, TOPIC)) == list(range(1, 13))


def test_a_directory_that_could_not_be_made_durable_is_made_again() -> None:
    """F11/groups: the second try found it and took it for durable; power loss took all groups."""
    files = SimulatedFiles()
    store = open_store(files)
    store.create_topic(TOPIC)
    store.append(TOPIC, [b"0", b"1"])
    files.fail("sync_directory")
    with pytest.raises(LaminaError):
        store.group(TOPIC, "readers")
    assert store.group(TOPIC, "readers").ack(0) == 1
    again = files.snapshot().crash("dropped")
    store.close()
    with open_store(again) as store:
        assert store.group(TOPIC, "readers").committed() == 1


def test_a_directory_that_a_killed_process_made_is_made_durable_by_the_next() -> None:
    files = SimulatedFiles()
    store = open_store(files)
    store.create_topic(TOPIC)
    store.append(TOPIC, [b"0", b"1"])
    killed: list[SimulatedFiles] = []

    def kill(kind: str, path: str) -> None:
        if kind == "sync_directory" and files.exists(f"{DATA}/groups") and not killed:
            killed.append(files.snapshot().restart())

    files.before = kill
    store.group(TOPIC, "readers")
    store.close()
    store = open_store(killed[0])
    assert store.group(TOPIC, "readers").ack(0) == 1
    again = killed[0].snapshot().crash("dropped")
    store.close()
    with open_store(again) as store:
        assert store.group(TOPIC, "readers").committed() == 1
