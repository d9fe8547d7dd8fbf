"""The program of docs/moving-from-kafka.md copies each record once, however often it is killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lamina
from tests.server.kafka.test_clients import RECORDS, plain
from tests.server.rig import served

PAGE = Path(__file__).parents[3] / "docs" / "moving-from-kafka.md"
PARTITIONS, EACH = 3, 30_000


def program(folder: Path, **replaced: str) -> str:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = [each for each in found if "send_offsets_to_transaction" in each]
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "mirror.py"
    path.write_text(text)
    return str(path)


def rows(store: Any, number: int) -> list[Any]:
    return [plain(row) for batch in store.scan("t", number) for row in batch.to_pylist()]


def test_a_topic_is_copied_once_by_a_program_that_is_killed(tmp_path: Path) -> None:
    with (
        served(tmp_path / "old", kafka_port=0) as old,
        served(tmp_path / "new", kafka_port=0) as new,
        lamina.connect(old.flight_url) as source,
        lamina.connect(new.flight_url) as target,
    ):
        source.create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            records = [
                {
                    "key": key,
                    "value": value,
                    "timestamp": timestamp,
                    "headers": [{"key": name, "value": text} for name, text in headers] or None,
                }
                for key, value, timestamp, headers in RECORDS
            ]
            source.append("t", records, partition=number)
            source.append("t", [b"%d" % each for each in range(EACH)], partition=number)
        mirror = program(tmp_path, **{"10_000": "1_000"})
        words = [sys.executable, mirror, old.kafka_address or "", new.kafka_address or "", "t"]
        for kill in (1, 2, 3):
            running = subprocess.Popen(words)
            while "t" not in target.topics() or copied(target) < kill * 15_000:
                assert running.poll() is None, "it ended too early"
                time.sleep(0.005)
            running.kill()
            running.wait()
        before = copied(target)
        assert before < PARTITIONS * EACH
        subprocess.run(words, check=True, timeout=120)
        for number in range(PARTITIONS):
            assert rows(target, number) == rows(source, number)
        source.append("t", b"late", partition=1)
        subprocess.run(words, check=True, timeout=120)
        assert rows(target, 1)[-1][1] == b"late"
        assert copied(target) == PARTITIONS * (EACH + len(RECORDS)) + 1


def copied(target: Any) -> int:
    return sum(target.latest_offset("t", number) for number in range(PARTITIONS))
