"""The clients that the door is tested with, and how each is run as a driver.

A driver is a program (`drivers`, `node`) that is asked on its standard input. Old versions live in
directories of their own, where the Makefile installs them; a client that is not there is skipped.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
INSTALLED = Path(__file__).parents[3] / "build" / "kafka-clients"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 90


@dataclass(frozen=True)
class Kind:
    """A client: its name and version in docs/kafka.md, its driver, and what it cannot do itself."""

    name: str
    driver: str
    package: str = ""
    """What is installed apart from the others, as pip is told it."""
    codecs: tuple[str, ...] = CODECS
    lacks: frozenset[str] = field(default_factory=frozenset)

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None where it can."""
        if self.driver.endswith(".mjs"):
            if shutil.which("node") is None:
                return "there is no node"
            if not (HERE / "node" / "node_modules").is_dir():
                return "the clients of npm are not installed: make test does that"
            return None
        if self.driver == "by_kcat.py" and shutil.which("kcat") is None:
            return "there is no kcat: make test installs Debian's"
        if self.package and not (INSTALLED / self.package).is_dir():
            return f"{self.package} is not installed: make test does that"
        return None


KINDS = (
    Kind("confluent-kafka 2.16", "by_confluent.py"),
    Kind("aiokafka 0.14", "by_aiokafka.py"),
    Kind("aiokafka 0.12", "by_aiokafka.py", "aiokafka==0.12.0"),
    Kind("kafka-python 3.0", "by_kafka_python.py"),
    Kind("kafka-python 2.3.0", "by_kafka_python.py", "kafka-python==2.3.0"),
    Kind("kafka-python 2.2.15", "by_kafka_python.py", "kafka-python==2.2.15"),
    Kind("kafka-python 2.1.5", "by_kafka_python.py", "kafka-python==2.1.5"),
    Kind("kafka-python 2.0.2", "by_kafka_python.py", "kafka-python==2.0.2"),
    Kind(
        "kcat 1.7.1",
        "by_kcat.py",
        lacks=frozenset({"seek", "admin", "timestamps", "headers without a name", "commits"}),
    ),
    Kind("kafkajs 2.2.4", "kafkajs.mjs", codecs=CODECS[:3]),
    Kind(
        "@platformatic/kafka 1.35", "platformatic.mjs", codecs=CODECS[:4], lacks=frozenset({"seek"})
    ),
)


class Refused(Exception):
    """What a client raised."""


class Driver:
    """A client that runs in a process of its own."""

    def __init__(self, kind: Kind, address: str) -> None:
        self.kind = kind
        environment = dict(os.environ)
        if kind.driver.endswith(".mjs"):
            words = ["node", str(HERE / "node" / kind.driver), address]
        else:
            words = [sys.executable, "-W", "ignore", str(HERE / "drivers" / kind.driver), address]
            environment["PYTHONPATH"] = str(INSTALLED / kind.package) if kind.package else ""
        self._process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, action: str, **given: Any) -> Any:
        """Asks for something; raises what the client raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": action, **given}) + "\n")
        self._process.stdin.flush()
        watch = threading.Timer(PATIENCE_S, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        assert line, f"{self.kind.name} ended, or took more than {PATIENCE_S} s, at {action}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]


def packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def packed_rows(records: list[Any]) -> list[Any]:
    """Records as a driver is told them, and tells them."""
    return [
        [packed(key), packed(value), time, [[name, packed(text)] for name, text in headers]]
        for key, value, time, headers in records
    ]
