"""Real S3 protocol servers on loopback, each a process of its own, stopped by its own id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.store import S3Store

from lamina.storage.objects import Objects, open_objects

BUCKET = "lamina"
CREDENTIALS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
_BIN = Path(sys.executable).parent
_MINUTE = timedelta(minutes=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class S3Server:
    """A server that was started by the test."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self._command, self._log = command, log
        self.start()
        self._make_bucket()

    def start(self) -> None:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": CREDENTIALS["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret_access_key"],
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.url, timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def _make_bucket(self) -> None:
        """Makes the bucket; obstore has no call for it, so a put at its root does."""
        root = S3Store(
            BUCKET,
            endpoint=self.url,
            client_options={"allow_http": True},
            **CREDENTIALS,
        )
        signed = obstore.sign(root, "PUT", "", _MINUTE)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            request = urllib.request.Request(signed, method="PUT", data=b"")
            try:
                urllib.request.urlopen(request, timeout=30).close()
                return
            except urllib.error.HTTPError:
                time.sleep(0.2)
        raise AssertionError("the server makes no bucket")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def objects(self, prefix: str, endpoint: str | None = None) -> Objects:
        return open_objects(f"s3://{BUCKET}/{prefix}", endpoint=endpoint or self.url, **CREDENTIALS)


def moto_server(folder: Path) -> S3Server:
    port = free_port()
    command = [str(_BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    return S3Server(command, port, folder / "moto.log")


def weed_server(folder: Path) -> S3Server:
    """SeaweedFS, all in one process, its data in a folder."""
    data = folder / "weed"
    data.mkdir(exist_ok=True)
    port = free_port()
    ports = [
        f"-{name}={free_port()}"
        for name in ("master.port", "volume.port", "filer.port", "webdav.port", "admin.port")
    ]
    command = [str(_BIN / "weed"), "mini", f"-dir={data}", "-ip=127.0.0.1", f"-s3.port={port}"]
    return S3Server([*command, *ports], port, folder / "weed.log")
