"""A directory is open once: a second opening learns by whom, and a path may be a Path."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import lamina
from lamina.errors import InvalidRequest, Locked


def test_a_second_open_in_the_same_process_is_given_the_store_that_is_open(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t")
        with pytest.raises(
            Locked, match=r"this process \(pid \d+\) has the directory open already"
        ) as refused:
            lamina.open(tmp_path / "data")
        assert refused.value.store is store
        refused.value.store.append("t", b"value")
    with lamina.open(tmp_path / "data") as again:
        assert again.latest_offset("t") == 1


def test_the_same_directory_by_another_name_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("data")
    with lamina.open(tmp_path / "data") as store:
        with pytest.raises(Locked) as refused:
            lamina.open(tmp_path / "link")
        assert refused.value.store is store


def test_the_store_stays_behind_when_the_error_travels(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data"):
        with pytest.raises(Locked) as refused:
            lamina.open(tmp_path / "data")
        for sent in (pickle.loads(pickle.dumps(refused.value)), copy.copy(refused.value)):
            assert str(sent) == str(refused.value)
            assert sent.store is None


def test_another_process_is_told_whose_it_is(tmp_path: Path) -> None:
    program = "import lamina, sys; lamina.open(sys.argv[1])"
    with lamina.open(tmp_path / "data"):
        asked = [sys.executable, "-c", program, str(tmp_path / "data")]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "another writer has this directory open: pid " in done.stderr
    assert "this process" not in done.stderr


def test_every_kind_of_store_is_opened_by_a_path(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data", archive=tmp_path / "archive") as store:
        store.create_topic("t", config={"remote.storage.enable": True})
        store.append("t", b"value")
        store.roll("t")
        store.archive()
    with lamina.open(tmp_path / "data", read_only=True, archive=tmp_path / "archive") as reader:
        assert reader.latest_offset("t") == 1
    with lamina.open((tmp_path / "archive").as_uri(), read_only=True) as archive:
        assert archive.latest_offset("t") == 1
    with pytest.raises(InvalidRequest, match=f"if it is an archive, open file://{tmp_path}"):
        lamina.open(tmp_path / "archive", read_only=True)


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "file:///somewhere", "grpc://host:9300"])
def test_a_url_that_went_through_a_path_is_not_taken_for_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="give a URL as text"):
        lamina.open(Path(url))
    with pytest.raises(InvalidRequest, match="give a URL as text"):
        lamina.open("data", archive=Path(url))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["grpc://host:9300", "http://host:9301"])
def test_a_server_is_no_directory_and_the_error_says_what_connects(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is a server, not a directory: lamina\.connect"):
        lamina.open(url)
    with pytest.raises(InvalidRequest, match="read_only=True; restore it"):
        lamina.open("s3://bucket/prefix")


def test_a_file_is_no_store_and_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("years of work")
    with pytest.raises(InvalidRequest, match=r"notes\.txt is a file; a store is a directory"):
        lamina.open(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "years of work"
