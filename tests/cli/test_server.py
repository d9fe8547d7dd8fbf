"""`lamina server`: a reload by HTTP and by signal, and whether a server is well."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.server import auth
from lamina.server.disk_watch import DiskWatch
from lamina.storage.machine import Space
from tests.server.certificates import write_certificate
from tests.server.rig import ServerProcess, served
from tests.server.test_reload import await_line


def test_a_reload_by_http_says_what_changed(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "keys.json")
    _, admin = auth.create(path, scope="admin")
    with served(tmp_path / "data", keys_file=path) as service:
        refused = lamina("server", "reload", "--url", service.http_url)
        assert refused.code == 2
        assert "needs an API key" in refused.err
        monkeypatch.setenv("LAMINA_API_KEY", admin)
        done = lamina("server", "reload", "--url", service.http_url)
        assert (done.code, done.out) == (0, "nothing has changed\n")
        made, _ = auth.create(path, scope="read")
        told = lamina("server", "reload", "--url", service.http_url).out
        assert f"key {made.id} was added" in told
        auth.delete(path, made.id)
        rows = lamina("server", "reload", "--url", service.http_url, "--json").out
        assert json.loads(rows)["keys_revoked"] == [made.id]
        Path(path).write_text("torn")
        assert lamina("server", "reload", "--url", service.http_url).code == 1


def test_a_private_authority_is_trusted_where_it_is_named(lamina: Any, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with served(tmp_path / "data", **tls) as service:
        url = service.http_url
        assert lamina("server", "check", "--url", url, "--ca", certificate).code == 0
        refused = lamina("server", "check", "--url", url)
        assert (refused.code, refused.err.count("\n")) == (3, 1)
        assert "certificate verify failed" in refused.err


def test_a_check_says_whether_a_server_is_well_by_its_exit_code(
    lamina: Any, tmp_path: Path
) -> None:
    with served(tmp_path / "data", disk_min_bytes=100) as service:
        found = lamina("server", "check", "--url", service.http_url, "--json")
        assert (found.code, json.loads(found.out)["ready"]) == (0, True)
        told = lamina("server", "check", "--url", service.http_url).out.splitlines()[1]
        assert told.split() == ["yes", "ok", "none", "none"]
        service.broker.condition.disk = DiskWatch("/d", lambda _: Space(9, 1000, 1000, 2000))
        found = lamina("server", "check", "--url", service.http_url, "--json")
        assert found.code == 1
        assert "9 bytes are free" in json.loads(found.out)["problems"][0]
        url = service.http_url
    nobody = lamina("server", "check", "--url", url)
    assert nobody[:] == (3, "", f"lamina: {url} does not answer: Connection refused\n")
    assert lamina("server", "check", "--url", "grpc://x").code == 2


@contextlib.contextmanager
def bystander(disposition: str) -> Iterator[int]:
    """A process that is no server, and that a signal would end or disturb."""
    program = f"import signal; signal.signal(signal.SIGHUP, signal.{disposition})"
    program += "; print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        assert process.poll() is None
        process.kill()


def test_a_reload_by_signal_finds_the_server_of_a_directory_and_spares_others(
    lamina: Any, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        told = lamina("server", "reload", "--data", tmp_path / "data")
        assert told.code == 0
        await_line(server, "reloaded: nothing has changed")
        assert server.process is not None
        assert lamina("server", "reload", "--pid", server.process.pid).code == 0
    assert "no server has" in lamina("server", "reload", "--data", tmp_path / "data").err
    for disposition in ("SIG_DFL", "default_int_handler"):  # without a handler, and with one
        with bystander(disposition) as pid:
            spared = lamina("server", "reload", "--pid", pid)
            assert (spared.code, "is not a server" in spared.err) == (2, True)
    assert lamina("server", "reload", "--pid", 1 << 22, "--json").code == 3
    assert lamina("server", "reload", "--pid", 1, "--data", "x").code == 2
