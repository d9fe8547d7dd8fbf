"""`lamina demo`: one story on real files, told from an empty directory.

A producer is killed while it appends, the log recovers, a bit flips, retention explains itself;
a file of each format is written, shown, damaged and verified. It ends with the pipeline: publish,
kill, recover, archive, query in Spark, stream exactly once, verify.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from rich.console import Console

from lamina.errors import InvalidRequest, RecordsMissing
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from lamina_demo import formats, pipeline

_MARKER = ".lamina-demo"
_SETTINGS = {"segment.bytes": 64 << 10}
_BATCHES_BEFORE_KILL = 300
_PRODUCER = "import sys; from lamina_demo.story import produce; produce(*sys.argv[1:])"


def tell(directory: str) -> None:
    """Tells the whole story in a directory of its own."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    _start_over(directory)
    store_path = os.path.join(directory, "data")
    acknowledged = _kill_a_producer(console, store_path, None)
    _recover(console, store_path, acknowledged)
    _flip_a_bit(console, store_path)
    formats.tell(console, os.path.join(directory, "formats"))
    shop, archive = (os.path.join(directory, "pipeline", name) for name in ("data", "archive"))
    acknowledged = _kill_a_producer(console, shop, archive)
    pipeline.tell(console, shop, archive, acknowledged)


def _start_over(directory: str) -> None:
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise InvalidRequest(f"{directory} is no directory; name another")
    marker = os.path.join(directory, _MARKER)
    if os.path.exists(directory) and os.listdir(directory) and not os.path.exists(marker):
        raise InvalidRequest(f"{directory} is not empty and was not made by the demo; name another")
    shutil.rmtree(directory, ignore_errors=True)
    LocalFiles().make_directory(os.path.abspath(directory))
    LocalFiles().replace(os.path.abspath(marker), b"")


def produce(path: str, archive: str | None = None) -> None:
    """Appends for ever and tells every acknowledged offset; the story's victim."""
    with Store(path, archive=archive) as store:
        remote = {"remote.storage.enable": True} if archive else {}
        store.create_topic("orders", config={**_SETTINGS, **remote})
        number = 0
        while True:
            ack = store.append("orders", [b"order %d" % (number + row) for row in range(10)])
            number = ack.base_offset + ack.count
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


def _kill_a_producer(console: Console, path: str, archive: str | None) -> int:
    console.rule("a producer is killed while it appends")
    arguments = [sys.executable, "-c", _PRODUCER, path, *([archive] if archive else [])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as victim:
        try:
            acknowledged = max(_acknowledged(victim, _BATCHES_BEFORE_KILL))
        finally:
            victim.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *_acknowledged(victim, None)])
    console.print(f"kill -9 after {acknowledged} records were acknowledged (acks=all: fsynced)")
    return acknowledged


def _acknowledged(victim: subprocess.Popen[str], count: int | None) -> Iterator[int]:
    """Reads what the victim tells: so many numbers, or all that it told before it died."""
    assert victim.stdout is not None
    told = 0
    for line in itertools.islice(victim.stdout, count):
        if line.endswith("\n"):
            told += 1
            yield int(line)
    if count is not None and told < count:
        raise InvalidRequest("the demo's producer stopped by itself")


def _recover(console: Console, path: str, acknowledged: int) -> None:
    console.rule("the log recovers")
    started = time.perf_counter()
    with Store(path) as store:
        opened_ms = (time.perf_counter() - started) * 1000
        for event in store.recovery_report.events:
            span = f" bytes {event.first_byte} to {event.end_byte}" if event.first_byte else ""
            console.print(f"  {event.kind}: {os.path.relpath(event.path, path)}{span}: {event.why}")
        found = store.latest_offset("orders")
        read = sum(batch.num_rows for batch in store.scan("orders"))
        console.print(
            f"opened in {opened_ms:.0f} ms; {found} records are there, {read} were read,"
            f" {acknowledged} were acknowledged: none is lost"
        )
        if found < acknowledged or read != found:
            raise InvalidRequest("the demo lost a record: please report this")
        store.alter_topic("orders", {"retention.bytes": 128 << 10})
        for decision in store.explain_retention("orders"):
            verb = "goes" if decision.goes else "stays"
            console.print(f"  segment {decision.segment.base_offset} {verb}: {decision.why}")
        store.apply_retention("orders")
        for gap in store.gaps("orders"):
            console.print(f"  offsets {gap.first} to {gap.end} are gone: {gap.reason}")


def _flip_a_bit(console: Console, path: str) -> None:
    console.rule("a bit flips in a sealed segment")
    segments = os.path.join(path, "topics", "orders", "0", "segments")
    victim = os.path.join(
        segments, sorted(n for n in os.listdir(segments) if n.endswith(".log"))[0]
    )
    data = bytearray(LocalFiles().read(victim))
    data[len(data) // 2] ^= 0x10
    LocalFiles().replace(os.path.abspath(victim), bytes(data))
    with Store(path) as store:
        first, end = store.earliest_offset("orders"), store.latest_offset("orders")
        read, start = 0, first
        while start < end:
            try:
                for batch in store.scan("orders", start=start):
                    read += batch.num_rows
                    start = batch.column("offset")[-1].as_py() + 1
            except RecordsMissing as missing:
                console.print(f"  the reader is told: {missing}")
                if missing.end <= start:
                    raise InvalidRequest("the demo's reader is stuck: please report this") from None
                start = missing.end
        console.print(f"{read} of {end - first} records were read; the damaged bytes are set aside")
