"""How files and connections share the descriptors of the process."""

from __future__ import annotations

import socket

import pytest

from lamina.storage.descriptors import DOORS, OWN_FILES, ConnectionGuard, share_of_door
from tests.server.test_flood import limited


def test_a_door_has_what_files_leave() -> None:
    with limited(1024):
        assert share_of_door(2048, 512) == (1024 - 512 - OWN_FILES) // DOORS
        assert share_of_door(100, 512) == 100
        assert share_of_door(2048, 100) == (1024 - 100 - OWN_FILES) // DOORS
    with limited(64):
        assert share_of_door(2048, 512) == 1


def test_those_that_came_last_are_closed_and_no_descriptor_of_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        guard = ConnectionGuard(port, 2)
        guard.stop()
        clients, accepted = [], []
        for _ in range(5):
            clients.append(socket.create_connection(("127.0.0.1", port)))
            accepted.append(listening.accept()[0])
            guard.look()
        assert [each.recv(1, socket.MSG_DONTWAIT) for each in clients[2:]] == [b""] * 3
        for each in clients[:2]:
            with pytest.raises(BlockingIOError):
                each.recv(1, socket.MSG_DONTWAIT)
        for each in clients + accepted:
            assert each.fileno() >= 0
            each.close()


def test_a_guard_does_not_keep_its_process_alive() -> None:
    guard = ConnectionGuard(1, 1)
    assert guard._thread.daemon
    guard.stop()
