"""kcat as a driver: a process for each question, and one for each member of a group.

It sets no timestamps, takes headers and a key's absence for all lines of a call alike, and commits
by itself: what needs more than that is not asked of it.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from conversation import converse, records_of, row_of

ADDRESS = sys.argv[1]
FORMAT = r"%p %o %T %K %S %h\n%k\n%s\n"
DELIVERED = re.compile(r"% Message delivered to partition \d+ \(offset (\d+)\)")
FAILED = re.compile(r"% (?:ERROR|Delivery failed).*")
REBALANCED = re.compile(r"rebalanced \(memberid .*?\): (assigned|revoked): (.*)")


def kcat(*words: str, given: bytes = b"") -> tuple[bytes, str]:
    """Runs kcat to its end; returns what it printed, and what it told."""
    command = ["kcat", "-b", ADDRESS, *words]
    ended = subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)
    told = ended.stderr.decode()
    if ended.returncode != 0 or FAILED.search(told):
        raise RuntimeError(told)
    return ended.stdout, told


def rows_of(stream: Any) -> Iterator[tuple[int, int, list[Any]]]:
    """Partition, offset and record, as `FORMAT` prints them."""
    while line := stream.readline():
        partition, offset, time, key_bytes, value_bytes, named = line[:-1].split(b" ", 5)
        key, value = (_read(stream, int(length)) for length in (key_bytes, value_bytes))
        headers = [each.partition("=")[::2] for each in named.decode().split(",") if each]
        found = row_of(key, value, int(time), [(name, text.encode()) for name, text in headers])
        yield int(partition), int(offset), found


def _read(stream: Any, length: int) -> bytes | None:
    found = stream.read(max(length, 0))
    stream.readline()
    return None if length < 0 else bytes(found)


class Member:
    """A kcat that is a member of a group."""

    def __init__(self, group: str, topic: str) -> None:
        words = ["-E", "-u", "-G", group, "-X", "auto.offset.reset=earliest", "-f", FORMAT]
        words += ["-X", "heartbeat.interval.ms=300", "-X", "session.timeout.ms=10000", topic]
        self.process = subprocess.Popen(
            ["kcat", "-b", ADDRESS, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.share: list[int] = []
        self.rows: SimpleQueue[tuple[int, int, list[Any]]] = SimpleQueue()
        for run in (self._listen, self._read):
            threading.Thread(target=run, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := REBALANCED.search(line.decode()):
                numbers = [int(each) for each in re.findall(r"\[(\d+)\]", found[2])]
                self.share = sorted(numbers) if found[1] == "assigned" else []

    def _read(self) -> None:
        for row in rows_of(self.process.stdout):
            self.rows.put(row)


class Client:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def version(self) -> str:
        found = subprocess.run(["kcat", "-V"], capture_output=True, check=True).stdout.decode()
        return found.partition("Version ")[2].split(" ")[0]

    def produce(self, topic: str, codec: str, records: Any, partition: int = 0) -> list[int]:
        offsets: list[int] = []
        alike = itertools.groupby(
            records_of(records), lambda each: (each[0] is None, each[1] is None, tuple(each[3]))
        )
        for (no_key, no_value, named), rows in alike:
            words = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-vvv", "-X", "acks=-1"]
            words += ["-X", "message.max.bytes=16777216", "-X", "linger.ms=20"]
            words += [] if no_key else ["-K", ":"]
            words += ["-Z"] if no_value else []
            for name, text in named:
                words += ["-H", f"{name}={text.decode()}"]
            lines = [(b"" if no_key else key + b":") + (value or b"") for key, value, *_ in rows]
            _, told = kcat(*words, given=b"".join(line + b"\n" for line in lines))
            offsets += map(int, DELIVERED.findall(told))
        return offsets

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Any]:
        words = ["-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)]
        words += ["-X", "check.crcs=true", "-q", "-f", FORMAT]
        with subprocess.Popen(["kcat", "-b", ADDRESS, *words], stdout=subprocess.PIPE) as process:
            return [row for _, _, row in rows_of(process.stdout)]

    def join(self, member: str, group: str, topic: str) -> None:
        self._members[member] = Member(group, topic)

    def assigned(self, member: str) -> list[int]:
        return self._members[member].share

    def take(self, member: str, count: int) -> list[Any]:
        rows = [self._members[member].rows.get() for _ in range(count)]
        return [[partition, offset, row[1]] for partition, offset, row in rows]

    def leave(self, member: str) -> None:
        process = self._members.pop(member).process
        process.terminate()
        process.wait(30)

    def time(self, topic: str, timestamp: int) -> int | None:
        found, _ = kcat("-Q", "-t", f"{topic}:0:{timestamp}")
        offset = int(found.split()[-1])
        return None if offset < 0 else offset

    def topics(self) -> list[str]:
        found, _ = kcat("-L")
        return re.findall(r'topic "(.*?)" with', found.decode())


if __name__ == "__main__":
    converse(Client())
