"""F11 on a real file system: pages of files on an ext4 that the device does not deliver.

The ext4 lies on a loop device, whose image is served by `lamina_torture.bad_disk`. Where a file's
page lies on the device is asked of the file system; that block is made bad, and the page dropped
from memory. Every user of the files then either works, with what is on the page missing and said
so, or fails by a typed error; and works again when the block is read again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina.config import WalSettings
from lamina.errors import UNREADABLE, LaminaError, RecordsMissing
from lamina.inspect.kinds import verify_file
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.faults.mounts import make_image, mounted, needs_mounts
from lamina_torture.rows import Rounds, Trial, demand, row

PAGE = 4096
RECORDS = 2000
TOPIC = "orders"
_FIBMAP = 1


@functools.cache
def needs_bad_disk() -> str | None:
    """Returns why there can be no disk with bad sectors here, or None."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if (problem := needs_mounts()) is not None:
        return problem
    with tempfile.TemporaryDirectory() as folder:
        try:
            with bad_ext4(Path(folder)):
                return None
        except (AssertionError, OSError) as error:
            return f"no loop device on FUSE here: {error}"


class BadExt4:
    """A mounted ext4, pages of whose files can be made bad."""

    def __init__(self, at: Path, bad: Path) -> None:
        self.at = at
        self._bad = bad

    def spoil(self, path: str, page: int) -> None:
        """Makes a page of a file unreadable, and forgets what is in memory of it."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            asked = bytearray(struct.pack("i", page))
            fcntl.ioctl(descriptor, _FIBMAP, asked)
            (block,) = struct.unpack("i", asked)
            demand(block > 0, "I12", f"{path}: page {page} lies nowhere")
            with self._bad.open("a") as file:
                file.write(f"{block * PAGE} {block * PAGE + PAGE}\n")
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def heal(self) -> None:
        """Makes everything readable again."""
        self._bad.write_text("")


@contextmanager
def bad_ext4(scratch: Path) -> Iterator[BadExt4]:
    """An ext4 whose device can be told which blocks are bad."""
    image, served, bad = make_image(scratch / "image"), scratch / "served", scratch / "bad"
    served.mkdir(exist_ok=True)
    bad.write_text("")
    words = [sys.executable, "-m", "lamina_torture.bad_disk", str(image), str(served), str(bad)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            assert server.stdout is not None
            demand(server.stdout.readline() == "ready\n", "I12", "the disk is not served")
            with mounted(scratch / "ext4", "-o", "loop", str(served / "disk")) as at:
                disk = BadExt4(at, bad)
                try:
                    yield disk
                finally:
                    disk.heal()
        finally:
            umount = shutil.which("umount") or "umount"
            subprocess.run([umount, "-l", str(served)], check=False, capture_output=True)  # noqa: S603
            server.kill()
            image.unlink()


# ---------------------------------------------------------------- users


def filled(directory: str, format_name: str) -> dict[int, bytes]:
    """Makes a store with sealed segments, a write-ahead log or an active one, and a group."""
    with open_store(directory) as store:
        config = {} if format_name == "wal" else {"segment.bytes": 64 << 10}
        store.create_topic(TOPIC, format=format_name, config=config)
        for first in range(0, RECORDS, 100):
            values = [b"%06d" % number + b"x" * 94 for number in range(first, first + 100)]
            store.append(TOPIC, values, partition=0)
        store.group(TOPIC, "g").poll(5)
        store.maintain()
        found, missing = read(store)
        demand(not missing and len(found) == RECORDS, "I1", "not all was kept")
        return found


def open_store(directory: str) -> Store:
    """Opens a store with small segments in which nothing happens by itself."""
    wal = WalSettings(shards=1, segment_events=600, wal_bytes=64 << 10)
    return Store(directory, wal=wal, tick_ms=1 << 30)


def read(store: Store | ReadOnlyStore) -> tuple[dict[int, bytes], list[RecordsMissing]]:
    """Reads everything, over what is missing."""
    values: dict[int, bytes] = {}
    missing: list[RecordsMissing] = []
    at: int | None = None
    while True:
        try:
            for batch in store.scan(TOPIC, start=at):
                offsets = batch.column("offset").to_pylist()
                values.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
            return values, missing
        except RecordsMissing as error:
            missing.append(error)
            at = error.end


def check_page(disk: BadExt4, directory: str, path: str, page: int, whole: dict[int, bytes]) -> str:
    """Makes one page of one file bad and uses the store in every way; returns what came of it."""
    disk.spoil(path, page)
    verify_file(path)  # whatever it finds, it lives
    with contextlib.suppress(LaminaError), ReadOnlyStore(directory) as reader:
        _judge(path, whole, *read(reader))
    try:
        store = open_store(directory)
    except LaminaError as error:
        demand(path in str(error), "I12", f"{path}: opening says: {error}")
        disk.heal()
        with open_store(directory) as store:
            demand(read(store) == (whole, []), "I1", f"{path}: refused, and not kept")
        return "refused"
    with store:
        _judge(path, whole, *read(store))
        uses: list[Callable[[], object]] = [
            lambda: store.group(TOPIC, "g").poll(50),
            lambda: store.apply_retention(TOPIC),
            lambda: store.offset_for_time(TOPIC, 0, 1),
            lambda: store.fetch(TOPIC, 0, store.latest_offset(TOPIC) // 2),
            lambda: store.diff(TOPIC, 0, 0),
            store.maintain,
        ]
        for use in uses:
            with contextlib.suppress(LaminaError):
                use()
        disk.heal()
        demand(read(store) == (whole, []), "I1", f"{path}: not readable again")
    with open_store(directory) as store:
        demand(read(store) == (whole, []), "I1", f"{path}: lost by the next opening")
    return "served"


def _judge(
    path: str, whole: dict[int, bytes], values: dict[int, bytes], missing: list[RecordsMissing]
) -> None:
    lost = whole.keys() - values.keys()
    demand(all(whole[at] == value for at, value in values.items()), "I2", f"{path}: other records")
    demand(len(lost) <= 2 * PAGE // 100 + 4, "I4", f"{path}: a page cost {len(lost)} records")
    reasons = {error.reason for error in missing}
    demand(reasons <= {UNREADABLE}, "I4", f"{path}: taken for {reasons}")


def pages_of(directory: str) -> list[tuple[str, int]]:
    """Every page of every file of a store that has a block of its own."""
    found = []
    for folder, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not path.endswith(("/LOCK", "/reserve")):
                found += [(path, page) for page in range(-(-os.path.getsize(path) // PAGE))]
    return found


@row("F11", "bad-page", invariants="I1 I2 I4 I12", rounds=Rounds(4, 30, 400), needs=needs_bad_disk)
def bad_page(trial: Trial) -> None:
    """A page of a file on ext4 is not delivered: in sealed and active segments, indexes, WAL."""
    with bad_ext4(trial.scratch) as disk:
        made = str(disk.at / "made")
        whole = filled(made, trial.format)
        pages = pages_of(made)
        trial.luck("order").shuffle(pages)
        for number, (path, page) in enumerate(pages[: trial.rounds]):
            with trial.case(number) as wanted:
                if wanted:
                    copy = str(disk.at / "copy")
                    shutil.copytree(made, copy)
                    spoiled = copy + path.removeprefix(made)
                    trial.counts[check_page(disk, copy, spoiled, page, whole)] += 1
                    shutil.rmtree(copy)
