"""A store remembers where its archive is; nobody has to name it twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import RecoveryReport
from lamina.archive import location
from lamina.archive.location import recalled, remember
from lamina.archive.open_archive import Memory
from lamina.errors import ArchiveUnavailable, CorruptData, InvalidRequest, NewerFormat
from lamina.formats.documents import archive_location as location_file
from lamina.formats.documents import strict_json
from lamina.formats.documents.archive_location import ArchiveLocation
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import NEVER, SETTINGS, TOPIC, memory, values
from tests.archive.rig import read as rows


@pytest.fixture(autouse=True)
def _no_archive_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMINA_ARCHIVE", raising=False)


def _filled(data: Path, archive: Any, format: str = "keratin") -> None:
    """A directory whose older records are in its archive alone."""
    with Store(str(data), archive=archive, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format, config=SETTINGS)
        for first in range(0, 60, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.append(TOPIC, values(60, 5))
        store.archive()
        assert store.segments(TOPIC)[-1].base_offset > 0


def read(store: Any, number: int = 0) -> list[bytes]:
    """The values from the number-th record on; wal topics count from 1."""
    first = store.describe_topic(TOPIC).format == "wal"
    return [value for _, value in rows(store, number + first)]


def numbered(first: int, end: int) -> list[bytes]:
    return values(first, end - first)


def _remembered(data: Path) -> str | None:
    return location.remembered(LocalFiles(), str(data))


@pytest.mark.parametrize("format", ["keratin", "frame", "wal"])
def test_a_store_finds_its_archive_without_being_told(tmp_path: Path, format: str) -> None:
    _filled(tmp_path / "data", str(tmp_path / "archive"), format)
    assert _remembered(tmp_path / "data") == str(tmp_path / "archive")
    for read_only in (True, False):
        with lamina.open(str(tmp_path / "data"), read_only=read_only) as store:  # type: ignore[call-overload]
            assert read(store) == numbered(0, 65)


def test_a_relative_path_and_a_file_url_are_kept_as_one_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _filled(tmp_path / "data", "archive")
    assert _remembered(tmp_path / "data") == str(tmp_path / "archive")
    before = (tmp_path / "data/meta/archive.json").stat().st_ino
    with Store(str(tmp_path / "data"), archive=f"file://{tmp_path}/archive/", tick_ms=NEVER):
        pass
    assert (tmp_path / "data/meta/archive.json").stat().st_ino == before  # nothing to write


def test_credentials_are_never_kept() -> None:
    assert location.location_of("s3://key:se/cret@bucket/a/") == "s3://bucket/a"
    assert location.location_of("s3://bucket/a@b") == "s3://bucket/a@b"
    assert location.location_of("s3://key:secret@bucket/a/") == "s3://bucket/a"


@pytest.mark.parametrize("archive", [memory, lambda: "memory://", lambda: ""])
def test_what_no_other_process_reaches_is_not_remembered(tmp_path: Path, archive: Any) -> None:
    with Store(str(tmp_path / "data"), archive=archive(), tick_ms=NEVER):
        pass
    assert not (tmp_path / "data/meta/archive.json").exists()


def test_the_argument_comes_before_the_environment_and_that_before_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("remembered", "environment", "argument"):
        (tmp_path / name).mkdir()
    data = str(tmp_path / "data")
    with Store(data, archive=str(tmp_path / "remembered"), tick_ms=NEVER):
        pass

    def used(archive: str | None) -> str | None:
        with lamina.ReadOnlyStore(data, archive=archive) as store:
            return store._archive.url if store._archive is not None else None

    assert used(None) == str(tmp_path / "remembered")
    monkeypatch.setenv("LAMINA_ARCHIVE", str(tmp_path / "environment"))
    assert used(None) == str(tmp_path / "environment")
    assert used(str(tmp_path / "argument")) == str(tmp_path / "argument")
    assert used("") is None


def test_another_archive_is_refused_while_the_first_holds_the_only_copies(tmp_path: Path) -> None:
    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"))
    with pytest.raises(InvalidRequest, match=r"copy every object below .*/archive to .*/other"):
        Store(str(data), archive=str(tmp_path / "other"), tick_ms=NEVER)
    assert _remembered(data) == str(tmp_path / "archive")
    with lamina.open(str(data)) as store:  # the lock was let go, and nothing was changed
        assert read(store) == numbered(0, 65)


@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_an_archive_moves_when_its_objects_have_been_copied(tmp_path: Path, format: str) -> None:
    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"), format)
    shutil.copytree(tmp_path / "archive", tmp_path / "other")
    shutil.rmtree(tmp_path / "archive")
    with Store(str(data), archive=str(tmp_path / "other"), tick_ms=NEVER) as store:
        assert read(store) == numbered(0, 65)
    assert _remembered(data) == str(tmp_path / "other")


def test_an_archive_is_exchanged_freely_while_nothing_was_handed_over(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Store(str(tmp_path / "data"), archive=str(tmp_path / name), tick_ms=NEVER):
            pass
        assert _remembered(tmp_path / "data") == str(tmp_path / name)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_an_archive_that_is_away_hides_only_what_it_alone_holds(
    tmp_path: Path, format: str, read_only: bool
) -> None:
    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"), format)
    (tmp_path / "archive").rename(tmp_path / "away")
    with lamina.open(str(data), read_only=read_only) as store:  # type: ignore[call-overload]
        first = store.segments(TOPIC)[-1].base_offset if not read_only else 60
        assert read(store, first) == numbered(first, 65)
        with pytest.raises(ArchiveUnavailable, match="is it mounted"):
            read(store, 0)
        assert not (tmp_path / "archive").exists()  # never made as an empty one
        (tmp_path / "away").rename(tmp_path / "archive")
        assert read(store, 0) == numbered(0, 65)


def test_a_remembered_url_that_cannot_be_opened_hides_only_what_it_holds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"))
    location.remember(LocalFiles(), str(data), "ftp://bucket")
    with lamina.open(str(data), read_only=True) as store:
        assert read(store, 60) == numbered(60, 65)
        with pytest.raises(ArchiveUnavailable, match="no object store is known"):
            read(store, 0)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", b'{"version": 9}'])
def test_a_damaged_location_is_reported_and_written_again(tmp_path: Path, damage: bytes) -> None:
    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"))
    path = data / "meta/archive.json"
    path.write_bytes(damage)
    with lamina.open(str(data), read_only=True) as reader:
        assert read(reader, 60) == numbered(60, 65)
    with lamina.open(str(data)) as store:
        assert store.tier is None
        assert [event.path for event in store.recovery_report.of("note")] == [str(path)]
    assert path.read_bytes() == damage
    with lamina.open(str(data), archive=str(tmp_path / "archive")) as store:
        assert read(store) == numbered(0, 65)
    assert _remembered(data) == str(tmp_path / "archive")


def test_a_location_is_decoded_strictly() -> None:
    good = location_file.encode(ArchiveLocation("s3://bucket/prefix"))
    assert location_file.decode(good) == ArchiveLocation("s3://bucket/prefix")
    for position in range(len(good) - 1):  # but for the newline
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptData):
                location_file.decode(bytes(bad))
    newer = {"version": 2, "url": "s3://b"}
    with pytest.raises(NewerFormat):
        location_file.decode(
            str(newer | {"crc32": strict_json.seal(newer)}).replace("'", '"').encode()
        )


def test_commands_use_what_is_remembered(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from lamina.cli.main import app

    _filled(tmp_path / "data", str(tmp_path / "archive"))
    found = CliRunner().invoke(app, ["tier", "status", "--data", str(tmp_path / "data"), "--json"])
    assert found.exit_code == 0
    assert '"archived_offset": 60' in found.output
    os.remove(tmp_path / "data/meta/archive.json")
    found = CliRunner().invoke(app, ["tier", "status", "--data", str(tmp_path / "data")])
    assert found.exit_code != 0


def test_doctor_says_whether_the_archive_answers(tmp_path: Path) -> None:
    from lamina.cli.doctor import examine
    from lamina.cli.target import Where

    data = tmp_path / "data"
    _filled(data, str(tmp_path / "archive"))

    def found() -> tuple[str, str]:
        row = next(row for row in examine(Where(data=str(data))) if row["check"] == "archive")
        return row["verdict"], row["finding"]

    assert found() == ("ok", f"{tmp_path / 'archive'} answers")
    (tmp_path / "archive").rename(tmp_path / "away")
    assert found()[0] == "problem"
    (data / "meta/archive.json").write_bytes(b"{}")
    assert "cannot be read" in found()[1]


def test_remembering_makes_the_directory_and_keeps_a_damaged_note_aside() -> None:
    files = SimulatedFiles()
    files.make_directory("/d/meta")
    files.replace("/d/meta/archive.json", b"somebody else's")
    remember(files, "/d", "/archive")
    assert files.is_directory("/archive"), "one that is not there is away from now on"
    assert recalled(files, "/d") == ("/archive", "")
    kept = {path: data for path, data in files.contents().items() if "/quarantine/" in path}
    assert list(kept.values()) == [b"somebody else's"]
    assert next(iter(kept)).startswith("/d/quarantine/0/archive.json.0."), "as all such copies"


def test_an_archive_is_its_own_unless_another_one_is_remembered() -> None:
    files = SimulatedFiles()
    files.make_directory("/d/meta")

    def is_own(archive: Any) -> bool:
        return Memory(archive, files, "/d", RecoveryReport()).is_own

    assert is_own("/archive"), "none is remembered"
    remember(files, "/d", "/archive")
    assert is_own("/archive")
    files.make_directory("/other")
    assert not is_own("/other")
    assert is_own("memory://"), "nobody remembers such a one"
