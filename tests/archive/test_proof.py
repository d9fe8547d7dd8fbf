"""An object store is proved before it is trusted: each promise that it breaks is found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.archive import proof
from lamina.errors import ArchiveRefused, ArchiveUnavailable, NewerFormat, ObjectConflict
from lamina.formats.documents import archive_proof
from lamina.storage import paths
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import ObjectInfo, Objects, Stored
from lamina.store import orphans
from tests.archive.rig import SETTINGS, TOPIC, memory, opened, values
from tests.support.failing_objects import FailingObjects
from tests.support.s3_servers import moto_server

SMALL = {"creators": 8, "rounds": 2}


def failed(objects: Objects, **more: int) -> dict[str, str]:
    return {
        each.check: each.problem
        for each in proof.prove(objects, **{**SMALL, **more})
        if each.problem
    }


def test_memory_is_fit_and_nothing_is_left_of_the_proof() -> None:
    objects = memory()
    assert failed(objects) == {}
    assert list(objects.list("")) == []


def test_a_directory_is_fit(tmp_path: Path) -> None:
    assert failed(DirectoryObjects(LocalFiles(), str(tmp_path))) == {}


def test_a_server_that_speaks_s3_is_fit(tmp_path: Path) -> None:
    server = moto_server(tmp_path)
    try:
        assert failed(server.objects("proved"), creators=64, rounds=1) == {}
    finally:
        server.kill()


# ---------------------------------------------------------------------- stores that lie


class Lying:
    """An object store that does all but one thing as it should."""

    def __init__(self) -> None:
        self.inner = memory()
        self.url = self.inner.url
        self.everybody = threading.Barrier(SMALL["creators"])
        self.turn = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def has(self, key: str) -> bool:
        return any(info.key == key for info in self.inner.list(""))


class ManyCreate(Lying):
    """Looks first and writes then, as stores do that check a condition without a lock."""

    def create(self, key: str, data: Any) -> None:
        if bytes(data[:6]) != b"writer":
            self.inner.create(key, data)
            return
        is_there = self.has(key)
        self.everybody.wait(30)
        if is_there:
            raise ObjectConflict(key)
        with self.turn:
            self.inner.delete(key)
            self.inner.create(key, data)


class ManyReplace(Lying):
    """Tells every writer of a race that it has won."""

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        try:
            return self.inner.replace(key, data, etag)
        except ObjectConflict:
            if not data.startswith(b"writer"):
                raise
            return "won"


class OtherBytes(Lying):
    """Keeps the bytes of one that it told to have lost."""

    def create(self, key: str, data: Any) -> None:
        try:
            self.inner.create(key, data)
        except ObjectConflict:
            if len(data) < 100:
                self.inner.replace(key, b"someone else", self.inner.read(key).etag)
            raise


class TakesStaleTags(Lying):
    """Takes any tag, and knows no condition but that something is there."""

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        is_racing = data.startswith(b"writer")
        if etag is not None and not is_racing and self.has(key):
            etag = self.inner.read(key).etag
        return self.inner.replace(key, data, etag)


class TakesMissing(Lying):
    """Creates what a tag should have named."""

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        is_there = self.has(key)
        return self.inner.replace(key, data, etag if is_there else None)


class CreatesOver(Lying):
    """Replaces without a tag what is there."""

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        is_there = self.has(key)
        if etag is None and is_there:
            etag = self.inner.read(key).etag
        return self.inner.replace(key, data, etag)


class ReadsLate(Lying):
    """Reads the first content of an object for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Stored] = {}

    def read(self, key: str) -> Stored:
        found = self.inner.read(key)
        return Stored(self.first.setdefault(key, found).data, found.etag)


class LargeOver(Lying):
    """Lets an upload in parts replace what is there."""

    def create(self, key: str, data: Any) -> None:
        if len(data) > 1000:
            self.inner.delete(key)
        self.inner.create(key, data)


class ListsLate(Lying):
    """Lists all but the newest."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(sorted(self.inner.list(prefix), key=lambda info: info.key)[:-1])


class ListsDeleted(Lying):
    """Lists what was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[ObjectInfo] = []

    def delete(self, key: str) -> None:
        self.gone += [info for info in self.inner.list("") if info.key == key]
        self.inner.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self.inner.list(prefix)
        yield from [info for info in self.gone if info.key.startswith(prefix)]


LIARS: dict[str, tuple[Callable[[], Any], str]] = {
    "many create": (ManyCreate, "conditional create"),
    "many replace": (ManyReplace, "conditional replace"),
    "other bytes": (OtherBytes, "conditional create"),
    "stale": (TakesStaleTags, "stale tag"),
    "missing": (TakesMissing, "missing tag"),
    "creates over": (CreatesOver, "missing tag"),
    "late": (ReadsLate, "read after write"),
    "large": (LargeOver, "large objects"),
    "lists late": (ListsLate, "listing"),
    "lists deleted": (ListsDeleted, "listing"),
}


@pytest.mark.parametrize("name", LIARS)
def test_a_store_that_lies_is_found_out(name: str) -> None:
    made, check = LIARS[name]
    assert check in failed(made())


def test_a_lost_answer_is_not_held_against_the_store() -> None:
    class LosesAnswers(Lying):
        def create(self, key: str, data: Any) -> None:
            self.inner.create(key, data)
            if bytes(data).startswith(b"writer"):
                raise ObjectConflict("the answer was lost, and the next try found its own object")

    assert failed(LosesAnswers()) == {}


def test_a_store_that_is_away_is_not_unfit() -> None:
    objects = FailingObjects(memory())
    objects.fail_at, objects.forever = 5, True
    with pytest.raises(ArchiveUnavailable):
        proof.prove(objects)
    assert proof.kept(objects.inner) is None


# ---------------------------------------------------------------------- what is kept of it

UNFIT = [proof.Finding("conditional create", "9 won"), proof.Finding("listing")]


def test_what_was_found_is_kept_and_replaced() -> None:
    objects = memory()
    assert proof.kept(objects) is None
    proof.keep(objects, UNFIT, 1, is_trusted=False)
    found = proof.kept(objects)
    assert found == archive_proof.ArchiveProof(1, ("conditional create: 9 won",))
    proof.keep(objects, [proof.Finding("listing")], 2, is_trusted=False)
    assert proof.kept(objects) == archive_proof.ArchiveProof(2)


def test_an_unfit_archive_is_refused_for_writing_until_it_is_proved_or_trusted() -> None:
    objects = memory()
    proof.keep(objects, UNFIT, 1, is_trusted=False)
    with _store(objects) as store:
        store.create_topic(TOPIC, format="keratin", config=SETTINGS)
        store.append(TOPIC, values(0, 40))
        with pytest.raises(ArchiveRefused, match="not fit to be an archive: conditional create: 9"):
            store.archive()
        assert "not fit" in store.tier_status()[0].last_error
        assert [info.key for info in objects.list("")] == [paths.ARCHIVE_PROOF]
        proof.keep(objects, UNFIT, 2, is_trusted=True)
        store.archive()
        assert store.tier_status()[0].archived_offset > 0


def test_rebuilding_a_list_is_a_writing_as_well() -> None:
    objects = memory()
    with _store(objects) as store:
        store.create_topic(TOPIC, format="keratin", config=SETTINGS)
        store.append(TOPIC, values(0, 40))
        store.archive()
    proof.keep(objects, UNFIT, 1, is_trusted=False)
    with pytest.raises(ArchiveRefused, match="not fit"):
        orphans.rebuild(objects, TOPIC)


def test_a_damaged_proof_says_nothing_and_a_newer_one_stays() -> None:
    objects = memory()
    objects.replace(paths.ARCHIVE_PROOF, b"{}", None)
    assert proof.kept(objects) is None
    newer = archive_proof.encode(archive_proof.ArchiveProof(1)).replace(b"1,", b"3,", 1)
    document = archive_proof.strict_json.parse(newer)
    del document["crc32"]
    raw = archive_proof.json.dumps(
        {**document, "crc32": archive_proof.strict_json.seal(document)}
    ).encode()
    objects.replace(paths.ARCHIVE_PROOF, raw, objects.read(paths.ARCHIVE_PROOF).etag)
    with pytest.raises(NewerFormat, match=paths.ARCHIVE_PROOF):
        proof.keep(objects, [], 1, is_trusted=False)
    assert objects.read(paths.ARCHIVE_PROOF).data == raw


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_does_not_make_an_unfit_archive_a_fit_one(where: float) -> None:
    objects = memory()
    proof.keep(objects, UNFIT, 1, is_trusted=False)
    found = objects.read(paths.ARCHIVE_PROOF)
    damaged = bytearray(found.data)
    damaged[int(len(damaged) * where)] ^= 4
    objects.replace(paths.ARCHIVE_PROOF, bytes(damaged), found.etag)
    with pytest.raises(ArchiveRefused, match="9 won"):
        proof.refuse_unfit(objects)


def _store(objects: Objects) -> Any:
    from lamina_torture.simulated import SimulatedFiles

    return opened(SimulatedFiles(), objects)
