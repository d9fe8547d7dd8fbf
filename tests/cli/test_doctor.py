"""`lamina doctor`: what a directory says of itself, and with `--thorough` every record in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.storage.object_directory import DirectoryObjects
from tests.support.directories import files_of, flip, opened

FORMATS = ("frame", "keratin", "wal")
SMALL = WalSettings(shards=1, segment_events=4)


def made(path: Path, format_name: str, **more: Any) -> Path:
    """A closed store with twelve records in three segments."""
    with opened(path, wal=SMALL, **more) as store:
        config = {"remote.storage.enable": "true"} if more else {}
        store.create_topic("t", format=format_name, config=config)
        for number in range(12):
            if number in (4, 8) and format_name != "wal":
                store.roll("t")
            store.append("t", [b"record %d" % number])
        store.purge_wal()
        if more:
            store.archive()
    return path


def logs(path: Path) -> list[Path]:
    return files_of(path, "log") or sorted(path.glob("segments/*/*.data"))


def problems(lamina: Any, path: Path, *more: str) -> list[str]:
    ran = lamina("doctor", *more, "--data", path, "--json")
    found = [row["finding"] for row in ran.rows if row["verdict"] == "problem"]
    assert ran.code == (1 if found else 0)
    return found


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_sound_store_has_no_problem(tmp_path: Path, lamina: Any, format_name: str) -> None:
    path = made(tmp_path / "data", format_name)
    assert problems(lamina, path) == problems(lamina, path, "--thorough") == []
    rows = lamina("doctor", "--thorough", "--data", path, "--json").rows
    assert "12 were read" in [row["finding"] for row in rows if row["check"] == "records"]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_that_is_gone_is_a_problem(
    tmp_path: Path, lamina: Any, format_name: str, which: int
) -> None:
    path = made(tmp_path / "data", format_name)
    logs(path)[which].unlink()
    first = 4 * which + (format_name == "wal")
    wanted = [f"t-0: offsets {first} to {first + 4} are lost"]
    assert problems(lamina, path) == wanted
    assert problems(lamina, path, "--thorough") == wanted, "and is told once"


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_log_that_lost_its_end_is_a_problem(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    last = logs(path)[-1]
    last.write_bytes(last.read_bytes()[:-3])
    end = 13 if format_name == "wal" else 12
    assert problems(lamina, path) == [f"t-0: offsets {end - 1} to {end} are lost"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_damage_that_nobody_has_met_is_found_by_reading(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    flip(logs(path)[0], logs(path)[0].read_bytes().index(b"record 1"))
    assert problems(lamina, path) == [], "nothing is read"
    (problem,) = problems(lamina, path, "--thorough")
    first = 1 + (format_name == "wal")
    assert f"offsets {first} to {first + 1}" in problem


@pytest.mark.parametrize("format_name", FORMATS)
def test_damage_that_the_archive_makes_good_is_no_problem(
    tmp_path: Path, lamina: Any, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = f"file://{tmp_path}/archive"
    monkeypatch.setenv("LAMINA_ARCHIVE", archive)
    path = made(tmp_path / "data", format_name, archive=archive)
    flip(logs(path)[0], logs(path)[0].read_bytes().index(b"record 1"))
    assert problems(lamina, path, "--thorough") == []
    for found in (tmp_path / "archive").rglob("*.seg"):
        found.unlink()
    assert problems(lamina, path, "--thorough")


# ---------------------------------------------------------------------- an object store


def verdicts(ran: Any) -> dict[str, str]:
    return {row["check"]: row["verdict"] for row in ran.rows}


def test_an_archive_alone_is_proved(tmp_path: Path, lamina: Any) -> None:
    ran = lamina("doctor", "--archive", tmp_path, "--json")
    assert (ran.code, set(verdicts(ran).values())) == (0, {"ok"})
    assert "conditional create" in verdicts(ran)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {".lock", "proof.json"}
    assert lamina("verify", tmp_path / "proof.json").code == 0


def test_an_archive_that_fails_is_a_problem_unless_it_is_trusted(
    tmp_path: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def creates_over(self: Any, key: str, data: Any) -> None:
        self._alone("creating", key, lambda: self._put(key, bytes(data)))

    monkeypatch.setattr(DirectoryObjects, "create", creates_over)
    ran = lamina("doctor", "--archive", tmp_path, "--json")
    assert (ran.code, verdicts(ran)["conditional create"]) == (1, "problem")
    trusted = lamina("doctor", "--archive", tmp_path, "--trust", "--json")
    assert (trusted.code, verdicts(trusted)["conditional create"]) == (0, "warning")


def test_trust_is_for_an_archive_alone(tmp_path: Path, lamina: Any) -> None:
    ran = lamina("doctor", "--data", made(tmp_path / "data", "keratin"), "--trust")
    assert (ran.code, "--archive alone" in ran.err) == (2, True)


def test_an_archive_that_does_not_answer_is_a_problem(tmp_path: Path, lamina: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    ran = lamina("doctor", "--archive", tmp_path / "file" / "below", "--json")
    assert (ran.code, verdicts(ran)) == (1, {"archive": "problem"})
