"""Sockets that are files: whose directory is closed to others, and which are never stolen."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from lamina.errors import InvalidRequest, Unavailable
from lamina.storage import local_sockets


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s")


def test_a_directory_is_made_that_nobody_else_may_enter(folder: Path) -> None:
    path = local_sockets.claim(str(folder / "run"), "a.sock")
    assert path == str(folder / "run" / "a.sock")
    assert stat.S_IMODE(os.stat(folder / "run").st_mode) == 0o700
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with local_sockets.listen(path, 1) as listening, client:
        client.connect(path)
        listening.accept()[0].close()
    local_sockets.give_up(path)
    local_sockets.give_up(path)
    assert os.listdir(folder / "run") == []


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    open_to_others = folder / "run"
    open_to_others.mkdir()
    open_to_others.chmod(mode)
    with pytest.raises(InvalidRequest, match="not closed to others"):
        local_sockets.claim(str(open_to_others), "a.sock")


def test_what_a_killed_server_left_is_removed_and_nothing_else(folder: Path) -> None:
    run = str(folder / "run")
    path = local_sockets.claim(run, "a.sock")
    local_sockets.listen(path, 1).close()  # as a killed process leaves it
    assert local_sockets.claim(run, "a.sock") == path
    assert not Path(path).exists()
    Path(path).write_text("notes")
    with pytest.raises(InvalidRequest, match="not a socket"):
        local_sockets.claim(run, "a.sock")
    assert Path(path).read_text() == "notes"


def test_a_socket_that_somebody_answers_at_is_left_alone(folder: Path) -> None:
    run = str(folder / "run")
    path = local_sockets.claim(run, "a.sock")
    with local_sockets.listen(path, 1):
        with pytest.raises(Unavailable, match="another server"):
            local_sockets.claim(run, "a.sock")
        with pytest.raises(Unavailable, match="cannot listen"):
            local_sockets.listen(path, 1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(path)


def test_a_name_that_no_socket_can_have_and_a_file_in_the_way_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        local_sockets.claim(str(folder / ("x" * 120)), "a.sock")
    (folder / "file").write_text("")
    with pytest.raises(InvalidRequest, match="not a directory"):
        local_sockets.claim(str(folder / "file"), "a.sock")
    with pytest.raises(InvalidRequest, match="cannot be a socket"):
        local_sockets.claim(str(folder / "not" / "there"), "a.sock")


def test_the_longest_name_is_one_that_the_system_takes(folder: Path) -> None:
    name = "s" * (local_sockets.PATH_BYTES_MAX - len(os.fsencode(folder)) - 1)
    path = local_sockets.claim(str(folder), name)
    with local_sockets.listen(path, 1):
        assert stat.S_ISSOCK(os.stat(path).st_mode)
    with pytest.raises(InvalidRequest, match="too long"):
        local_sockets.claim(str(folder), f"{name}s")
