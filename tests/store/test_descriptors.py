"""Few descriptors: files that are open are bounded, and one that is missing costs one call."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.api import ProducerStamp
from lamina.storage.files import LocalFiles
from lamina.store.store import Store

FORMATS = ("frame", "keratin", "wal")

MANY_TOPICS = """
import resource, sys
from lamina.store.store import Store
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
directory, format_name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for turn in range(2):
    with Store(directory) as store:
        for number in range(count):
            name = f"t{number}"
            if turn == 0:
                store.create_topic(name, format=format_name)
            store.append(name, [b"a", b"b"], partition=0, acks=turn)
            store.roll(name)
        for number in range(0, count, 10):
            group = store.group(f"t{number}", "g")
            group.ack(group.poll(1))
        scans = (store.scan(f"t{n}", isolation="written") for n in range(count))
        found = sum(batch.num_rows for scan in scans for batch in scan)
        assert found == 2 * count * (turn + 1), found
        assert store.failures() == {}, store.failures()
print("done")
"""


@pytest.mark.parametrize("format_name", FORMATS)
def test_more_topics_than_descriptors(format_name: str, tmp_path: Path) -> None:
    """The long run has 3,000 of them; here as many as make the limit tell."""
    words = [sys.executable, "-c", MANY_TOPICS, str(tmp_path / "data"), format_name, "700"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert found.stdout == "done\n", found.stderr[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("format_name", FORMATS)
def test_thousands_of_topics_with_a_thousand_descriptors(format_name: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", MANY_TOPICS, str(tmp_path / "data"), format_name, "3000"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert found.stdout == "done\n", found.stderr[-2000:]


NO_DESCRIPTORS = """
import os, resource, sys
from lamina.store.store import Store
from lamina.errors import LaminaError, Unavailable
directory, format_name = sys.argv[1:]
with Store(directory) as store:
    store.create_topic("t", format=format_name)
    group = store.group("t", "g")
    for _ in range(3):
        store.append("t", [b"x" * 100] * 50, partition=0)
        store.roll("t")
    calls = {
        "roll": lambda: store.roll("t"),
        "trim": lambda: store.trim("t", 0, 60),
        "append": lambda: store.append("t", [b"y"], partition=0),
        "ack": lambda: group.ack(group.poll(3)),
        "scan": lambda: list(store.scan("t", start=100)),
        "create": lambda: store.create_topic("u", format=format_name),
        "maintain": store.maintain,
        "delete_group": lambda: store.delete_group("t", "g"),
    }
    for name, call in calls.items():
        store.append("t", [b"before"], partition=0)
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            call()
        except Unavailable as error:
            print("refused", name, error, file=sys.stderr)
        finally:
            for each in taken:
                os.close(each)
        assert store.failures() == {}, (name, store.failures())
        store.append("t", [b"after"], partition=0)
        try:
            call()
        except LaminaError as error:
            assert name in ("create", "delete_group"), (name, error)
    assert store.failures() == {}
print("done")
"""


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_missing_descriptor_costs_one_call_and_poisons_nothing(
    format_name: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path / "data"), format_name]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, limit[1]))

    found = subprocess.run(
        words, capture_output=True, text=True, timeout=200, check=False, preexec_fn=lower
    )
    assert found.stdout == "done\n", found.stderr[-2000:]


def open_files_below(directory: Path) -> list[str]:
    links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    targets = [os.readlink(each) for each in links if os.path.islink(each)]
    return [each for each in targets if each.startswith(str(directory))]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_closed_store_keeps_no_file_open_and_an_open_one_few(
    format_name: str, tmp_path: Path
) -> None:
    gc.disable()
    try:
        store = Store(str(tmp_path / "data"), files=LocalFiles(open_files=8))
        for number in range(20):
            store.create_topic(f"t{number}", format=format_name, config={"segment.bytes": 1024})
            for _ in range(3):
                store.append(f"t{number}", [b"x" * 400] * 2, partition=0)
        reader = [store.scan(f"t{number}") for number in range(20)]
        batches = [next(each) for each in reader]
        kept = len(open_files_below(tmp_path))
        assert kept <= 8 + 8, "the limit, the lock, and the files of the WAL"
        store.close()
        assert open_files_below(tmp_path) == []
        assert all(batch.num_rows for batch in batches), "what was read stays"
    finally:
        gc.enable()


@pytest.mark.parametrize("format_name", FORMATS)
def test_journals_of_idempotent_producers_count_among_the_files_that_are_kept_open(
    format_name: str, tmp_path: Path
) -> None:
    gc.disable()
    try:
        for turn in range(2):
            store = Store(str(tmp_path / "data"), files=LocalFiles(open_files=8))
            for number in range(20):
                topic = f"t{number}"
                if turn == 0:
                    store.create_topic(topic, format=format_name)
                stamp = ProducerStamp(7, 0, turn)
                first = store.append(topic, [b"x"], partition=0, producer=stamp)
                assert store.append(topic, [b"x"], partition=0, producer=stamp) == first
            assert len(open_files_below(tmp_path)) <= 8 + 8
            store.close()
            assert open_files_below(tmp_path) == []
    finally:
        gc.enable()
