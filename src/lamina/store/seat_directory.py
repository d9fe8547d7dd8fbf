"""What happens to a data directory when its broker has taken a cluster over.

    never was in a cluster ──▶ adopted as it is, if the cluster's log is empty
    served in the last epoch ──▶ goes on where it was: nobody else was there in between
    served in an earlier one ──▶ set aside, with a report of what was never shipped; then mounted
    empty, or half mounted ──▶ mounted

Rules.
1. `meta/seat.json` is written before the directory becomes what it says: an interrupted mount is
   begun again, and its remains are never mistaken for records of the cluster.
2. What was never shipped is moved to `quarantine/diverged-<epoch>/`, which is a data directory of
   its own: it can be opened for reading. Its report is there before anything is moved.
3. A directory is removed only if it was closed when everything in it was shipped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from lamina.api import RecoveryReport
from lamina.archive.object_list import Shelf
from lamina.cluster.steps import run
from lamina.cluster.tails import Takeover, live_windows
from lamina.config import TopicSettings, WriterSettings
from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.documents import seat_file
from lamina.formats.documents.seat_file import MOUNTING, SERVING, SHIPPED, SeatFile
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS
from lamina.formats.tail_file import Kind, Tail
from lamina.log.interfaces import Writing
from lamina.storage import paths
from lamina.storage.files import Files, wall_clock_ms
from lamina.storage.objects import Objects
from lamina.store import open_stores
from lamina.store.mounting import mount, refuse_format
from lamina.store.opening import Boot
from lamina.store.window_history import History, adopted, history_of, is_same

_log = logging.getLogger(__name__)
Ends = dict[tuple[str, int], int]
"""One past the last offset of each partition, by topic and number."""


@dataclass(frozen=True, slots=True)
class Diverged:
    """Offsets that a directory holds from an earlier epoch, and that were perhaps never shipped."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(slots=True)
class Ground:
    """The directory of a seat: what the cluster's log holds of it, and how far."""

    history: History
    ends: Ends


def read_seat(boot: Boot) -> SeatFile | None:
    """Reads the epoch in which a directory was last served; None if it never was."""
    path = boot.path(paths.SEAT)
    if not boot.files.exists(path):
        return None
    try:
        return seat_file.decode(boot.files.read(path))
    except CorruptData as error:
        raise error.at_path(path) from error


def write_seat(boot: Boot, epoch: int, state: str) -> None:
    """Writes what the directory is from now on."""
    boot.files.make_directory(boot.path(paths.META))
    boot.files.replace(boot.path(paths.SEAT), seat_file.encode(SeatFile(epoch, state)))


def prepare(
    boot: Boot,
    objects: Objects,
    taken: Takeover,
    report: RecoveryReport,
) -> Ground:
    """Makes a directory hold the cluster's log, and returns how far it reaches."""
    epoch, history, known = taken.holding.epoch, history_of(taken.tails), read_seat(boot)
    if known is None and _has_topics(boot):
        return _adopt(boot, objects, history, epoch)
    if known is not None and known.state != MOUNTING:
        if known.epoch == taken.last_epoch:
            write_seat(boot, epoch, SERVING)
            return Ground(history, ends_of(objects, history, _local(boot)))
        leave_behind(boot, taken.tails, known, report)
    if not history.is_begun:
        history = adopted(objects)
    write_seat(boot, epoch, MOUNTING)
    _clear(boot)
    mount(boot, objects, history, epoch, taken.holding.lease.holder)
    write_seat(boot, epoch, SERVING)
    return Ground(history, ends_of(objects, history, _local(boot)))


def _has_topics(boot: Boot) -> bool:
    return bool(boot.files.list(boot.path(paths.TOPICS)))


def _local(boot: Boot) -> dict[str, TopicFile]:
    return boot.catalog.peek()


def _adopt(boot: Boot, objects: Objects, history: History, epoch: int) -> Ground:
    """Adopts a directory that was in no cluster: ships its records from the archive's end on."""
    topics = _local(boot)
    if history.is_begun:
        raise InvalidRequest(
            f"{boot.data} holds topics that are not of this cluster: a broker joins it with an"
            " empty directory"
        )
    for about in topics.values():
        refuse_format(about)
    loose = [
        name for name, each in topics.items() if not TopicSettings.parse(each.settings).is_archived
    ]
    if loose:
        raise InvalidRequest(
            f"topics of a cluster are archived; set remote.storage.enable on {', '.join(loose)}"
            " before the directory joins one"
        )
    write_seat(boot, epoch, SERVING)
    return Ground(history, ends_of(objects, history, topics))


def ends_of(objects: Objects, history: History, topics: dict[str, TopicFile]) -> Ends:
    """Returns how far archive and windows hold each partition of some topics."""
    found: Ends = {}
    for name, about in topics.items():
        known = history.topics.get(name)
        for number in range(about.partitions):
            end = 0
            if known is not None and is_same(known.about, about):
                end = known.part(number).end_offset
            found[name, number] = max(end, _archived_end(objects, about, number))
    return found


def _archived_end(objects: Objects, about: TopicFile, number: int) -> int:
    try:
        return Shelf(objects, about, number).load().end_offset
    except InvalidRequest:  # of another topic of this name
        return 0


def require_all(boot: Boot, epoch: int, ends: Ends, local: Ends) -> None:
    """Refuses a directory that goes on and has lost what it had shipped.

    The next opening sets it aside, and mounts what the cluster's log has.
    """
    for (topic, number), end in ends.items():
        if local.get((topic, number), end) < end:
            write_seat(boot, max(1, epoch - 1), SERVING)
            raise CorruptData(
                f"{topic}/{number} ends before what was shipped of it; open the directory again: it"
                " is set aside then, and made again from the cluster's log",
                path=boot.data,
                expected=f"records up to {end}",
                found=f"up to {local[topic, number]}",
            )


def local_ends(boot: Boot) -> Ends:
    """Recovers each partition of a directory that is set aside; returns where each ends."""
    found, report = {}, RecoveryReport()
    hints = boot.read_checkpoint(report)
    with ThreadPoolExecutor(1) as executor:
        writing = Writing(WriterSettings(), executor, lambda topic, partition: {})
        for name, about in _local(boot).items():
            for number in range(about.partitions if about.format in CODECS else 0):
                hint = hints.get((name, number))
                partition = boot.open_partition(about, number, hint, report, writing)
                found[name, number] = partition.end_offset("durable")
                partition.release_files()
    return found


# ---------------------------------------------------------------------- another history


def ended_epoch(files: Files, data: str) -> int:
    """Returns under which epoch a process served a directory that has ended since; 0 for none.

    Nobody has it open: raises Locked otherwise.
    """
    boot = Boot(files, paths.absolute(data), wall_clock_ms)
    if not files.exists(boot.path(paths.SEAT)):
        return 0
    lock = open_stores.lock(boot)
    try:
        known = read_seat(boot)
        return 0 if known is None or known.state == MOUNTING else known.epoch
    finally:
        lock.release()


def part_from(files: Files, data: str, objects: Objects, epoch: int) -> list[Diverged]:
    """Sets a directory aside that was served before an epoch which another broker has begun.

    Returns what was never shipped of it. What is not of an earlier epoch stays as it is. Nobody has
    the directory open: raises Locked otherwise.
    """
    path = paths.absolute(data)
    boot, report = Boot(files, path, wall_clock_ms), RecoveryReport()
    if not files.exists(boot.path(paths.SEAT)):
        return []
    lock = open_stores.lock(boot)
    try:
        boot, _ = boot.identified()
        known = read_seat(boot)
        if known is None or known.state == MOUNTING or known.epoch >= epoch:
            return []
        found = leave_behind(boot, run(objects, live_windows()), known, report)
        for event in report.events:
            _log.error("%s: %s; it is kept in %s", event.path, event.why, event.kept_in)
        return found
    finally:
        lock.release()


def kept_apart(files: Files, data: str) -> list[dict[str, Any]]:
    """Returns the reports of all that was ever set aside here, by the epoch that it was served in.

    Each has `epoch`, `ranges` of what was never shipped, and the directory that it is kept in.
    """
    found = []
    folder = paths.join(paths.absolute(data), paths.QUARANTINE)
    names = files.list(folder) if files.is_directory(folder) else []
    for path in (paths.join(folder, name, paths.DIVERGED_REPORT) for name in names):
        if files.exists(path):
            report = json.loads(files.read(path))
            found.append(report | {"kept_in": paths.parent(path)})
    return sorted(found, key=lambda each: each["epoch"])


def leave_behind(
    boot: Boot, tails: Iterable[Tail], known: SeatFile, report: RecoveryReport
) -> list[Diverged]:
    """Sets aside what a directory of an earlier epoch holds; returns what was never shipped."""
    folder = boot.path(paths.diverged(known.epoch))
    path = paths.join(folder, paths.DIVERGED_REPORT)
    found: list[Diverged] = []
    if not boot.files.exists(path):
        if known.state == SHIPPED:  # windows may be gone by now that would prove it again
            write_seat(boot, known.epoch, MOUNTING)
            return []
        found = _never_shipped(boot, tails, known.epoch)
        boot.files.make_directory(folder)
        text = {"epoch": known.epoch, "ranges": [asdict(each) for each in found]}
        boot.files.replace(path, (json.dumps(text, indent=2) + "\n").encode())
    _move(boot, folder)
    what = ", ".join(f"{each.topic}/{each.partition} {each.first} to {each.end}" for each in found)
    why = (
        f"the directory was served in epoch {known.epoch}, and another broker since: what was never"
        f" shipped is another history ({what or 'no records'})"
    )
    report.add("quarantined", boot.data, why, kept_in=folder)
    write_seat(boot, known.epoch, MOUNTING)
    return found


def _never_shipped(boot: Boot, tails: Iterable[Tail], epoch: int) -> list[Diverged]:
    """Compares a directory with the windows up to its epoch.

    Of windows that were collected nothing is known: then a range may begin with records that were
    shipped.
    """
    shipped: Ends = {}
    for tail in tails:
        for each in tail.sections if tail.epoch <= epoch else ():
            if each.kind == Kind.RECORDS:
                place = each.name, each.partition
                shipped[place] = max(shipped.get(place, 0), each.next_offset)
    return [
        Diverged(*place, shipped.get(place, 0), end)
        for place, end in sorted(local_ends(boot).items())
        if end > shipped.get(place, 0)
    ]


def _move(boot: Boot, folder: str) -> None:
    """Moves everything of a directory but its identity, its lock, its seat and its quarantine."""
    files = boot.files
    stays = {paths.META, paths.QUARANTINE}
    names = [each for each in files.list(boot.data) if each not in stays]
    kept = {paths.base_name(each) for each in (paths.BROKER_ID, paths.LOCK, paths.SEAT)}
    more = [
        f"{paths.META}/{each}" for each in files.list(boot.path(paths.META)) if each not in kept
    ]
    files.make_directory(paths.join(folder, paths.META))
    for name in (*names, *more):
        if not files.exists(paths.join(folder, name)):
            files.rename(boot.path(name), paths.join(folder, name))
    files.replace(paths.join(folder, paths.BROKER_ID), files.read(boot.path(paths.BROKER_ID)))
    for each in (folder, paths.join(folder, paths.META), boot.data, boot.path(paths.META)):
        files.sync_directory(each)


def _clear(boot: Boot) -> None:
    """Removes the remains of an interrupted mount."""
    for name in (paths.TOPICS, paths.GROUPS, paths.TRANSACTIONS):
        _remove_tree(boot.files, boot.path(name))
    for name in (paths.CHECKPOINT, paths.ROSTER, paths.PRODUCER_IDS, paths.GROUP_SETTINGS):
        if boot.files.exists(boot.path(name)):
            boot.files.remove(boot.path(name))
    boot.files.sync_directory(boot.path(paths.META))


def _remove_tree(files: Files, path: str) -> None:
    if files.is_directory(path):
        for entry in files.list(path):
            _remove_tree(files, paths.join(path, entry))
        files.remove_directory(path)
    elif files.exists(path):
        files.remove(path)
