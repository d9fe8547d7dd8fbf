"""A real standalone cluster on this machine: a master and two workers, from the pip package."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from lamina.spark.spark_session import java_home

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROOT = Path(__file__).parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
"""One for each worker, all of them this machine: Spark speculates on another host only."""
START_S = 90


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One of the cluster's processes; ended with everything it started."""

    def __init__(self, log: Path, host: str, name: str, *arguments: str) -> None:
        self.log = log
        environment = os.environ | {
            "JAVA_HOME": java_home(),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "SPARK_LOCAL_IP": host,
            "SPARK_WORKER_DIR": str(log.parent / "work"),
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [CLASS, f"org.apache.spark.deploy.{name}", "--host", host, *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + START_S
        while text not in self.log.read_text(errors="replace"):
            assert self._process.poll() is None, self.log.read_text(errors="replace")
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")
            time.sleep(0.1)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def executors(application: str) -> list[int]:
    """The processes that execute an application's tasks."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                command = (entry / "cmdline").read_bytes()
                arguments = command.split(b"\0")
                if application.encode() in arguments and b"--executor-id" in arguments:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Starts a cluster and gives its address; ends it again."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as running:
        ports = ("--port", str(port), "--webui-port", "0")
        master = Process(folder / "master.log", HOSTS[0], "master.Master", *ports)
        running.callback(master.stop)
        master.wait_for("I have been elected leader")
        for number, host in enumerate(HOSTS):
            size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            log = folder / f"worker-{number}.log"
            worker = Process(log, host, "worker.Worker", *size, address)
            running.callback(worker.stop)
            worker.wait_for("Successfully registered with master")
        yield address
