"""The disks that a crash may leave, each under a name from which it can be made again.

    dropped, kept        nothing that was not safe is there, or all of it
    killed               the process ended: all is there, and nothing is safer than before
    seed-7               what a seed says: some names, sectors, lengths, zeros, garbage
    512-1f-zeros         exactly these units (a bit each, in hexadecimal), by sectors of 512 bytes;
                         where a length was kept without its data there are zeros
    names-5-kept         exactly these changes of names, and all of the data
    torn-/srv/x.log-83   all but this file, of which the first 83 unsynced bytes are there

A case of a row is `workload:step:disk`, so one line is all that a failure needs.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from lamina_torture import workloads
from lamina_torture.disk import Chosen, Disk, Inode, Tail, Torn, Unit, Write
from lamina_torture.rows import Trial
from lamina_torture.scribe import Moment, Scribe
from lamina_torture.simulated import SimulatedFiles
from lamina_torture.surviving import survive

ALL_SUBSETS_UNITS = 5
"""Up to so many units all subsets are tried; of more the edges and some by chance."""


def made(disk: Disk[SimulatedFiles], name: str) -> SimulatedFiles:
    """Makes the disk with a name."""
    if name in ("dropped", "kept"):
        return disk.crash("kept" if name == "kept" else "dropped")
    if name == "killed":
        return disk.restart()
    if name.startswith("seed-"):
        return disk.crash(int(name.removeprefix("seed-")))
    if name.startswith("torn-"):
        path, kept = name.removeprefix("torn-").rsplit("-", 1)
        return disk.crash(Torn(inode_at(disk, path), int(kept)))
    how, mask, tail = name.split("-")
    sector_bytes = 512 if how == "names" else int(how)
    units = disk.units(sector_bytes)
    kept_units = [unit for bit, unit in enumerate(units) if int(mask, 16) >> bit & 1]
    if how == "names":
        kept_units = [unit for unit in kept_units if unit.inode is None]
        kept_units += [unit for unit in units if unit.inode is not None and tail == "kept"]
        return disk.crash(Chosen(kept_units, sector_bytes=sector_bytes))
    crc = zlib.crc32(mask.encode())
    return disk.crash(
        Chosen(kept_units, sector_bytes=sector_bytes, tail=cast("Tail", tail), seed=crc)
    )


def inode_at(disk: Disk[SimulatedFiles], path: str) -> Inode:
    """Returns the file that has a path when all names are kept."""
    names = {folder: dict(entries) for folder, entries in disk.folders.items()}
    for change in disk.changes:
        for folder, name, node in change:
            entries = names.setdefault(folder, {})
            entries.pop(name, None) if node is None else entries.update({name: node})
    found: Any = disk.root
    for name in path.strip("/").split("/"):
        found = names[found][name]
    assert isinstance(found, Inode)
    return found


# ---------------------------------------------------------------- which of them


def subsets(units: list[Unit], luck: random.Random, some: int) -> Iterator[int]:
    """Yields masks: every subset of few units; of many the edges, and some by chance."""
    count = len(units)
    if count <= ALL_SUBSETS_UNITS:
        yield from range(1 << count)
        return
    everything = (1 << count) - 1
    yield 0
    yield everything
    for _ in range(some):
        bit = 1 << luck.randrange(count)
        yield from (bit, everything ^ bit)  # one alone, and all but one
        yield (1 << luck.randrange(count)) - 1  # the first ones, in order
        yield luck.getrandbits(count)


def reordered(moment: Moment, luck: random.Random, some: int = 2) -> Iterator[str]:
    """Yields disks with any subset of what was not safe, by sectors."""
    for sector_bytes in (512, 4096):
        units = moment.disk.units(sector_bytes)
        if sector_bytes == 512 or len(units) != len(moment.disk.units()):
            for mask in subsets(units, luck, some):
                yield f"{sector_bytes}-{mask:x}-sectors"


def tails(moment: Moment, luck: random.Random) -> Iterator[str]:
    """Yields disks where lengths were kept without their data: zeros or garbage are there."""
    units = moment.disk.units()
    writes = [unit for unit in units if unit.inode is not None]
    if writes:
        names = sum(1 << bit for bit, unit in enumerate(units) if unit.inode is None)
        some = luck.getrandbits(len(units)) | names
        for tail in ("zeros", "garbage"):
            yield from (f"512-{names:x}-{tail}", f"512-{some:x}-{tail}")


def names_only(moment: Moment, luck: random.Random) -> Iterator[str]:
    """Yields every subset of the changes of names, with all of the data and with none."""
    units = [unit for unit in moment.disk.units() if unit.inode is None]
    if units:
        for mask in subsets(units, luck, 4):
            yield from (f"names-{mask:x}-kept", f"names-{mask:x}-dropped")


def torn_bytes(moment: Moment, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Yields, of each file with unsynced bytes and such a name, every number of first bytes."""
    for path in moment.disk.restart().contents():
        if path.endswith(suffixes):
            _, pending, _ = moment.disk.files[inode_at(moment.disk, path)]
            total = sum(len(each.data) for each in pending if isinstance(each, Write))
            yield from (f"torn-{path}-{kept}" for kept in range(total))


# ---------------------------------------------------------------- all of it together


class Crashes:
    """Tries the disks of workloads for a trial, each different one once, up to its rounds."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._known: set[int] = set()

    @property
    def enough(self) -> bool:
        """Whether the trial has had its rounds."""
        return self._trial.counts["disks"] >= self._trial.rounds

    def run(
        self,
        names: Iterable[str],
        choose: Callable[[Moment, random.Random], Iterable[str]],
        *,
        whole: bool = False,
    ) -> None:
        """Runs workloads and tries what is chosen of each moment; in any column, of all of them.

        Where there are rounds for only some, no workload takes more than its share.
        """
        trial = self._trial
        if trial.only is not None:
            name, step, disk = trial.only.split(":")
            scribe = workloads.run(name, trial.format, whole=whole)
            self.attempt(scribe, scribe.moments[int(step)], name, disk)
            return
        for name in names:
            if self.enough:
                return
            scribe = workloads.run(name, trial.format, whole=whole)
            trial.counts["workloads"] += 1
            luck = trial.luck(name)
            cases = [(moment, disk) for moment in scribe.moments for disk in choose(moment, luck)]
            share = self._share(name)
            if len(cases) > share:
                cases = luck.sample(cases, share)
            for moment, disk in cases:
                if self.enough:
                    return
                self.attempt(scribe, moment, name, disk)

    def _share(self, name: str) -> int:
        if name == workloads.EVERYTHING:
            return max(20, self._trial.rounds // 2)
        return max(8, self._trial.rounds // 60)

    def attempt(self, scribe: Scribe, moment: Moment, name: str, disk: str) -> None:
        """Tries one disk."""
        files = made(moment.disk, disk)
        case = f"{name}:{moment.step}:{disk}"
        if disk != "killed" and self._trial.only is None:
            seen = [
                (path, data) for path, data in files.contents().items() if "broker.id" not in path
            ]
            key = hash((tuple(seen), tuple(sorted(moment.promise.items()))))
            if key in self._known:
                return
            self._known.add(key)
        with self._trial.case(case, "disks") as wanted:
            if wanted:
                survive(scribe, files, moment.promise, zlib.crc32(case.encode()))
