"""Object stores: how each answer of a store is taken, and what a directory does as one."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from lamina.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    CorruptData,
    InvalidRequest,
    LaminaError,
    ObjectConflict,
    ObjectMissing,
)
from lamina.storage import object_directory, paths
from lamina.storage import objects as objects_module
from lamina.storage.files import LocalFile, LocalFiles
from lamina.storage.object_directory import LOCK, DirectoryObjects
from lamina.storage.objects import ObstoreObjects, open_objects
from lamina_torture.simulated import SimulatedFiles

# -------------------------------------------------------------------- what a URL names


@pytest.mark.parametrize(
    "url", ["", "bucket/prefix", "ftp://bucket", "file:///srv/archive", "s3:/"]
)
def test_a_url_of_no_known_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no object store is known"):
        open_objects(url)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3a://", "gs://", "az:///prefix"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="names no bucket"):
        open_objects(url)


def test_an_option_that_the_store_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket: "):
        open_objects("s3://bucket", endpoint="http://127.0.0.1:9", region="eu", no_such_option="1")


@pytest.mark.parametrize(
    ("url", "prefix"), [("s3://b", None), ("s3a://b/", None), ("s3://b/x/y/", "x/y")]
)
def test_what_follows_the_bucket_is_the_prefix(url: str, prefix: str | None) -> None:
    found = open_objects(url, region="eu", endpoint="http://127.0.0.1:9")
    assert isinstance(found, ObstoreObjects)
    assert found.url == url
    assert str(found._store.prefix or "") == (prefix or "")


OTHERS = {
    "gs://b/x/y/": {"skip_signature": "true"},
    "az://b/x/y/": {"account_name": "a", "account_key": "a2V5"},
}


@pytest.mark.parametrize("url", OTHERS)
def test_other_clouds_are_opened_by_their_urls(url: str) -> None:
    found = open_objects(url, **OTHERS[url])
    assert isinstance(found, ObstoreObjects)
    assert (found.url, str(found._store.prefix)) == (url, "x/y")


@pytest.mark.parametrize(
    ("about", "condition"),
    [
        ({"e_tag": '"1"', "version": None}, {"e_tag": '"1"'}),
        ({"e_tag": '"1"', "version": "17"}, {"e_tag": '"1"', "version": "17"}),
        ({"e_tag": None, "version": "17"}, {"e_tag": "", "version": "17"}),
    ],
)
def test_a_tag_names_the_version_where_the_store_has_one(about: Any, condition: Any) -> None:
    assert objects_module._condition(objects_module._tag_of(about)) == condition


# -------------------------------------------------------------------- tries


class Answers:
    """Calls of obstore that answer in turn with errors, then with what is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *errors: Exception) -> None:
        self.calls = 0
        self._errors = list(errors)
        self._real = getattr(obstore, name)
        monkeypatch.setattr(obstore, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)
        return self._real(*given, **named)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def objects(pauses: list[float]) -> ObstoreObjects:
    found = ObstoreObjects("memory://", MemoryStore(), pauses.append)
    found.create("key", b"data")
    return found


CALLS: dict[str, tuple[str, Callable[[ObstoreObjects], Any], str]] = {
    "read": ("get", lambda each: each.read("key"), "reading key"),
    "read_range": ("get_range", lambda each: each.read_range("key", 0, 2), "reading key"),
    "size": ("head", lambda each: each.size("key"), "asking for key"),
    "list": ("list", lambda each: list(each.list("")), "listing "),
    "delete": ("delete", lambda each: each.delete("key"), "deleting key"),
    "create": ("put", lambda each: each.create("new", b"x"), "creating new"),
    "replace": ("put", lambda each: each.replace("new", b"x", None), "replacing new"),
}
EVERY = pytest.mark.parametrize("call", CALLS)


@EVERY
@pytest.mark.parametrize("failures", [1, 2])
def test_what_may_pass_is_tried_again(
    call: str,
    failures: int,
    objects: ObstoreObjects,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, act, _ = CALLS[call]
    answers = Answers(monkeypatch, name, *[OSError(errno.ECONNRESET, "reset")] * failures)
    act(objects)
    assert (answers.calls, pauses) == (failures + 1, [0.1, 0.2][:failures])


@EVERY
def test_three_failures_are_unavailable(
    call: str, objects: ObstoreObjects, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, act, doing = CALLS[call]
    failures = [exceptions.GenericError("busy\nand more")] * 9
    answers = Answers(monkeypatch, name, *failures)
    with pytest.raises(ArchiveUnavailable, match=f"{doing} failed: busy$"):
        act(objects)
    assert (answers.calls, pauses[:2]) == (3, [0.1, 0.2])


@EVERY
@pytest.mark.parametrize("kind", ["PermissionDeniedError", "UnauthenticatedError"])
def test_what_is_refused_for_good_is_tried_once(
    call: str, kind: str, objects: ObstoreObjects, pauses: list[float], monkeypatch: Any
) -> None:
    name, act, doing = CALLS[call]
    answers = Answers(monkeypatch, name, getattr(exceptions, kind)("no right"))
    with pytest.raises(ArchiveRefused, match=f"{doing} is refused: no right"):
        act(objects)
    assert (answers.calls, pauses) == (1, [])


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("read", ObjectMissing),
        ("size", ObjectMissing),
        ("read_range", ObjectMissing),
        ("create", ArchiveRefused),
        ("replace", ArchiveRefused),
    ],
)
def test_what_is_not_found_is_missing_or_the_bucket_is(
    call: str, kind: type[LaminaError], objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, act, _ = CALLS[call]
    answers = Answers(monkeypatch, name, FileNotFoundError("no bucket"))
    with pytest.raises(kind):
        act(objects)
    assert answers.calls == 1


@EVERY
def test_only_a_condition_can_fail(
    call: str, objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, act, _ = CALLS[call]
    answers = Answers(monkeypatch, name, exceptions.PreconditionError("412"))
    if call in ("create", "replace"):
        with pytest.raises(ObjectConflict):
            act(objects)
        assert answers.calls == 1
    else:
        act(objects)
        assert answers.calls == 2, "nobody asked for a condition: the store is confused"


def test_a_large_object_goes_in_parts_and_is_never_replaced(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "SINGLE_PUT_BYTES", 4)
    copies = Answers(monkeypatch, "copy")
    objects.create("small", b"1234")
    assert copies.calls == 0
    objects.create("large", b"12345")
    assert copies.calls == 1
    with pytest.raises(ObjectConflict):
        objects.create("large", b"54321")
    assert objects.read("large").data == b"12345"
    assert sorted(each.key for each in objects.list("")) == ["key", "large", "small"]


def test_an_object_that_is_shorter_than_asked_for_is_cut_off(objects: ObstoreObjects) -> None:
    assert bytes(objects.read_range("key", 0, 4)) == b"data"
    assert bytes(objects.read_range("key", 1, 3)) == b"at"
    with pytest.raises(CorruptData, match="the object is cut off") as caught:
        objects.read_range("key", 2, 9)
    assert (caught.value.path, caught.value.position) == ("memory:///key", 4)
    assert (caught.value.expected, caught.value.found) == ("at least 9 bytes", "4 bytes")


def test_a_short_answer_about_a_whole_object_is_no_damage(
    objects: ObstoreObjects, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore, "get_range", lambda *_, **__: b"d")
    with pytest.raises(ArchiveUnavailable, match="reading key failed: 1 bytes of 4"):
        objects.read_range("key", 0, 4)
    assert pauses == [0.1, 0.2]


def test_what_nobody_can_size_is_unavailable_and_not_damaged(
    objects: ObstoreObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore, "get_range", lambda *_, **__: b"d")
    Answers(monkeypatch, "head", *[OSError("away")] * 3)
    with pytest.raises(ArchiveUnavailable, match="1 bytes of 4"):
        objects.read_range("key", 0, 4)


def test_a_short_body_of_a_whole_read_is_tried_again(
    objects: ObstoreObjects, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Body:
        meta = {"size": 4, "e_tag": None}

        def __init__(self, data: bytes) -> None:
            self._data = data

        def bytes(self) -> bytes:
            return self._data

    bodies = [Body(b"da"), Body(b"data")]
    monkeypatch.setattr(obstore, "get", lambda *_: bodies.pop(0))
    found = objects.read("key")
    assert (found.data, found.etag, pauses) == (b"data", "", [0.1])


def test_a_listing_has_sizes_and_times_and_a_tag_names_its_version(objects: ObstoreObjects) -> None:
    (found,) = objects.list("")
    assert (found.key, found.size_bytes) == ("key", 4)
    assert abs(found.modified_ms - time.time() * 1000) < 600_000
    objects.create("below/key", b"data")
    assert [each.key for each in objects.list("below")] == ["below/key"]
    tag = objects.read("key").etag
    assert tag
    assert objects.replace("key", b"more", tag) == objects.read("key").etag != tag


# -------------------------------------------------------------------- a directory


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryObjects:
    return DirectoryObjects(LocalFiles(), str(tmp_path / "archive"))


def test_what_a_file_system_refuses_for_good_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no directory")
    beside = DirectoryObjects(LocalFiles(), str(tmp_path / "file"))
    with pytest.raises(ArchiveRefused, match=r"Not a directory|File exists"):
        beside.create("a/b", b"1")
    (tmp_path / "archive" / "a" / "b").mkdir(parents=True)
    taken = DirectoryObjects(LocalFiles(), str(tmp_path / "archive"))
    with pytest.raises(ArchiveRefused, match="directory"):
        taken.read("a/b")


def test_only_objects_are_listed_in_order(directory: DirectoryObjects, tmp_path: Path) -> None:
    for key in ("b/2", "a", "b/1"):
        directory.create(key, b"12")
    (tmp_path / "archive" / f"c{paths.TEMPORARY_SUFFIX}").write_bytes(b"left by a crash")
    assert (tmp_path / "archive" / LOCK).exists()
    found = list(directory.list(""))
    assert [(each.key, each.size_bytes) for each in found] == [("a", 2), ("b/1", 2), ("b/2", 2)]
    assert [each.key for each in directory.list("b")] == ["b/1", "b/2"]
    assert all(each.modified_ms > 1_600_000_000_000 for each in found)


def test_a_range_is_read_whole_or_not_at_all(directory: DirectoryObjects) -> None:
    directory.create("k", b"0123456789")
    assert directory.read_range("k", 2, 10) == b"23456789"
    assert directory.read_range("k", 3, 3) == b""
    with pytest.raises(CorruptData, match="the object is cut off") as caught:
        directory.read_range("k", 2, 11)
    assert caught.value.position == 10


def test_an_object_is_created_once_and_replaced_by_its_tag(directory: DirectoryObjects) -> None:
    directory.create("k", b"one")
    with pytest.raises(ObjectConflict, match="there already"):
        directory.create("k", b"two")
    for tag in (None, "another"):
        with pytest.raises(ObjectConflict, match="changed by another"):
            directory.replace("k", b"two", tag)
    assert directory.read("k").data == b"one"
    for missing in (directory.read, directory.size, lambda key: directory.read_range(key, 0, 1)):
        with pytest.raises(ObjectMissing, match="there is no none"):
            missing("none")


def test_a_short_answer_about_a_whole_file_is_no_damage(
    directory: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create("k", b"0123456789")
    monkeypatch.setattr(LocalFile, "read_at", lambda *_: b"01")
    with pytest.raises(ArchiveUnavailable, match="k gave 2 of 5 bytes"):
        directory.read_range("k", 5, 10)


def test_a_tag_is_of_the_content(directory: DirectoryObjects) -> None:
    tag = directory.replace("k", b"one", None)
    assert tag == directory.read("k").etag
    assert directory.replace("other", b"one", None) == tag
    assert directory.replace("k", b"eno", tag) != tag


def test_a_directory_that_fails_is_unavailable() -> None:
    files = SimulatedFiles()
    found = DirectoryObjects(files, "/srv/archive")
    found.create("k", b"data")
    files.fail("read", error=errno.EIO)
    with pytest.raises(ArchiveUnavailable, match="reading k failed"):
        found.read("k")
    files.fail("sync", error=errno.EIO)
    with pytest.raises(ArchiveUnavailable, match="creating other failed"):
        found.create("other", b"data")
    assert [each.key for each in found.list("")] == ["k"]


def test_what_was_created_replaced_or_deleted_survives_a_power_loss() -> None:
    files = SimulatedFiles()
    found = DirectoryObjects(files, "/srv/archive")
    found.create("a/k", b"data")
    found.delete("a/none")
    assert after_power_loss(files).read("a/k").data == b"data"
    found.replace("a/k", b"more", found.read("a/k").etag)
    assert after_power_loss(files).read("a/k").data == b"more"
    found.delete("a/k")
    assert list(after_power_loss(files).list("")) == []


RACER = """
import sys, threading
from lamina.errors import ObjectConflict
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects

directory, first = sys.argv[1], int(sys.argv[2])
won, ready = [], threading.Barrier(17)

def race(number):
    objects = DirectoryObjects(LocalFiles(), directory)
    ready.wait()
    try:
        objects.create("raced/k", b"%03d" % number * 50_000)
        won.append(number)
    except ObjectConflict:
        pass

threads = [threading.Thread(target=race, args=(first + number,)) for number in range(16)]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.read()
ready.wait()
for thread in threads:
    thread.join()
print(*won)
"""


def test_one_of_64_creators_wins_and_nobody_reads_a_part_of_it(
    directory: DirectoryObjects, tmp_path: Path
) -> None:
    seen, winners = set(), []
    with contextlib.ExitStack() as racing:
        racers = [
            racing.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RACER, str(tmp_path / "archive"), str(16 * number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(4)
        ]
        for each in racers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in racers:
            assert each.stdin is not None
            each.stdin.close()
        while any(each.poll() is None for each in racers):
            with contextlib.suppress(ObjectMissing):
                seen.add(bytes(directory.read("raced/k").data))
        for each in racers:
            assert each.stdout is not None
            winners += each.stdout.read().split()
            assert each.returncode == 0
    (winner,) = winners
    whole = b"%03d" % int(winner) * 50_000
    assert seen <= {whole}
    assert directory.read("raced/k").data == whole


@pytest.mark.parametrize("choice", ["dropped", "kept", 1, 2, 3])
def test_an_object_is_created_whole_or_not_at_all(choice: Any) -> None:
    """Whenever the power fails, at each step; what was there before is left as it was."""
    files = SimulatedFiles()
    found = DirectoryObjects(files, "/srv/archive")
    found.create("a/old", b"old")
    disks, steps = [], []

    def note(kind: str, path: str) -> None:
        disks.append(files.snapshot())
        steps.append(kind)

    files.before = note
    found.create("a/k", b"whole" * 5_000)
    assert steps == ["create", "write_at", "sync", "rename", "sync_directory"]
    for disk in disks:
        left = DirectoryObjects(disk.crash(choice), "/srv/archive")
        assert {each.key for each in left.list("")} <= {"a/old", "a/k"}
        assert left.read("a/old").data == b"old"
        with contextlib.suppress(ObjectMissing):
            assert left.read("a/k").data == b"whole" * 5_000
        with contextlib.suppress(ObjectConflict):  # what a crash leaves is in nobody's way
            left.create("a/k", b"again")


def after_power_loss(files: SimulatedFiles) -> DirectoryObjects:
    """The directory when nothing was kept that was not synced."""
    return DirectoryObjects(files.snapshot().crash("dropped"), "/srv/archive")


def test_a_writer_waits_for_another_and_then_gives_up(
    directory: DirectoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    directory.create("k", b"1")
    lock = LocalFiles().lock(str(tmp_path / "archive" / LOCK), "another\n")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            lock.release()

    monkeypatch.setattr(object_directory.time, "sleep", pause)
    directory.create("other", b"1")
    assert len(pauses) == 3
    lock = LocalFiles().lock(str(tmp_path / "archive" / LOCK), "another\n")
    pauses[:] = [0.0] * 5
    monkeypatch.setattr(object_directory, "LOCK_TRIES", 4)
    with pytest.raises(ArchiveUnavailable, match="creating more failed"):
        directory.create("more", b"1")
    assert len(pauses) == 5 + 3, "no pause behind the last try"
    lock.release()
    directory.create("more", b"1")


def test_a_machine_without_credentials_is_told_what_to_set() -> None:
    asked = "Error performing PUT http://169.254.169.254/latest/api/token in 2s"
    assert "set AWS_ACCESS_KEY_ID" in objects_module._first_line(OSError(asked))
    assert objects_module._first_line(OSError("503 Slow Down")) == "503 Slow Down"
