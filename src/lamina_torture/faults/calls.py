"""F11 to F14: the n-th call of a kind fails, each in its turn; on a simulated disk.

A workload runs as often as it makes calls of a kind; in the n-th run the n-th call fails. A case is
`kind:n:error:how`.
"""

from __future__ import annotations

import errno
import functools
from collections import Counter
from collections.abc import Iterable
from typing import cast

from lamina.errors import (
    UNREADABLE,
    Closed,
    CorruptData,
    InvalidRequest,
    RecordsMissing,
    Unavailable,
)
from lamina.store.store import Store
from lamina_torture.client import (
    TOPIC,
    Client,
    first_offset,
    no_failed_sync_is_repeated,
    read,
    reopen,
    use,
)
from lamina_torture.disk import Choice
from lamina_torture.promises import read as read_over_gaps
from lamina_torture.rows import ALL, Rounds, Trial, demand, row
from lamina_torture.scribe import open_store
from lamina_torture.simulated import AfterSync, SimulatedFiles

NAMES = ("create", "rename", "remove", "sync_directory", "make_directory")
KINDS = ("write_at", "sync", "truncate", "open", "read", "load", *NAMES)
ERRORS = {
    "EAGAIN": ("write_at", "read", "open"),
    "EINTR": ("write_at", "sync", "open"),
    "EMFILE": ("open", "create", "sync_directory"),
    "EACCES": ("open", "create", "rename", "remove", "make_directory"),
    "EROFS": ("write_at", "truncate", *NAMES),
}


@functools.cache
def calls(format_name: str) -> Counter[str]:
    """Counts the workload's calls by kind, on a sound disk."""
    client = Client(SimulatedFiles(), format_name)
    use(client)
    demand(not client.errors, "I12", f"an error without a fault: {client.errors}")
    demand(len(client.acknowledged) > 12, "I12", "the workload was not acknowledged")
    assert client.store is not None
    client.check(client.store)
    found = Counter(client.files.calls)
    client.close()
    return found


def _cases(format_name: str, kinds: Iterable[str], *hows: str) -> list[str]:
    """Names a case for each call of these kinds and each way of failing."""
    return [
        f"{kind}:{number}:{how}"
        for kind in kinds
        for number in range(1, calls(format_name)[kind] + 1)
        for how in hows
    ]


def _run(trial: Trial, cases: list[str]) -> None:
    """Fails a call in each case; a sample of them where there are not rounds for all."""
    if len(cases) > trial.rounds:
        cases = trial.luck().sample(cases, trial.rounds)
    for case in cases:
        with trial.case(case, "calls") as wanted:
            if wanted:
                _fail_one(trial.format, case)


def _fail_one(format_name: str, case: str) -> None:
    kind, number, error, how, *_ = f"{case}:".split(":")
    files = SimulatedFiles()
    after = cast("AfterSync", how if kind == "sync" and how else "pending")
    written = float(how) if kind == "write_at" and how else 0.0
    code = getattr(errno, error)
    forever = how == "forever"
    files.fail(
        kind, at=int(number), error=code, after=after, written=written if not forever else 0.0,
        forever=forever,
    )  # fmt: skip
    client = Client(files, format_name, careful=not forever and kind not in ("read", "load"))
    use(client)
    client.close()
    failed = {step.kind for step in files.history if step.failed}
    demand(failed <= {kind}, "I12", f"other calls failed: {failed}")
    files.faults.clear()
    no_failed_sync_is_repeated(files)
    reopen(client, int(number))


@row("F11", "every-call", invariants="I1 I2 I3 I5 I6 I12", rounds=Rounds(12, 120, ALL))
def every_call(trial: Trial) -> None:
    """Each call of the disk fails once with EIO: reads, writes, syncs, names, maps, truncations."""
    _run(trial, _cases(trial.format, KINDS, "EIO"))


@row("F11", "for-ever", invariants="I1 I2 I3 I5 I6 I12", rounds=Rounds(6, 50, ALL))
def for_ever(trial: Trial) -> None:
    """From the n-th call of a kind on, every one fails; then the disk is healed and opened."""
    kinds = [kind for kind in KINDS if kind not in ("write_at", "sync")]
    cases = _cases(trial.format, kinds, "EIO:forever")
    _run(trial, cases)


@row("F12", "failed-sync", invariants="I1 I2 I5 I12", rounds=Rounds(12, 80, ALL))
def failed_sync(trial: Trial) -> None:
    """Each sync fails once: its pages dropped, kept but clean, still pending, or in truth saved."""
    ways = ("dropped", "kept", "pending", "done")
    _run(trial, _cases(trial.format, ["sync"], *(f"EIO:{way}" for way in ways)))


@row("F12", "lying-sync", invariants="I2 I3 I12", rounds=Rounds(5, 30, ALL))
def lying_sync(trial: Trial) -> None:
    """From the n-th on, syncs succeed and save nothing: records may be lost, none is read wrong."""
    cases = _cases(trial.format, ["sync"], "lie")
    if len(cases) > trial.rounds:
        cases = trial.luck().sample(cases, trial.rounds)
    for case in cases:
        with trial.case(case, "calls") as wanted:
            if wanted:
                trial.counts["refused"] += _lie(trial.format, int(case.split(":")[1]))


def _lie(format_name: str, number: int) -> int:
    """Returns how often the store refused to open, with a typed error: it may, after a lie."""
    files = SimulatedFiles()
    files.fail("sync", at=number, forever=True, lies=True)
    client = Client(files, format_name)
    use(client)
    client.close()
    demand(not client.errors, "I12", f"a lie was noticed as {client.errors}")
    refused = 0
    choices: tuple[Choice, ...] = ("dropped", 1, 2, 3)
    for choice in choices:
        try:
            store = open_store(files.snapshot().crash(choice))
        except CorruptData:
            refused += 1
            continue
        with store:
            if TOPIC in store.topics():
                _use_after_lie(store, client)
    return refused


def _use_after_lie(store: Store, client: Client) -> None:
    found = [dict(fields)["value"] for fields in read_over_gaps(store, TOPIC).values()]
    known = set(map(repr, client.handed_in))
    demand(set(found) <= known, "I2", "read, but never appended")
    demand(len(set(found)) == len(found), "I3", "appended once, read twice")
    end = store.latest_offset(TOPIC)
    more = store.append(TOPIC, [b"more"], partition=0)
    demand(more.base_offset == end, "I3", f"appended at {more.base_offset}, not {end}")


@row("F13", "no-space", invariants="I1 I2 I12", rounds=Rounds(10, 80, ALL))
def no_space(trial: Trial) -> None:
    """Each write, creation and rename finds no space once, as ENOSPC, EDQUOT or EFBIG."""
    cases = _cases(trial.format, ["write_at"], "ENOSPC:0.6", "EDQUOT:0.0", "EFBIG:0.3")
    cases += _cases(trial.format, ["create", "rename", "make_directory"], "ENOSPC")
    _run(trial, cases)


@row("F13", "full-disk", invariants="I1 I2 I8 I12", rounds=Rounds(8, 50, 5000))
def full_disk(trial: Trial) -> None:
    """The disk has room for so many bytes and no more, at any moment; then space comes back."""
    total = _used_bytes(trial.format)
    for number in range(trial.rounds):
        with trial.case(number, "disks") as wanted:
            if wanted:
                _fill(trial.format, trial.luck(number).randrange(total + 4096), number)


@functools.cache
def _used_bytes(format_name: str) -> int:
    client = Client(SimulatedFiles(), format_name)
    use(client)
    client.close()
    return client.files.used_bytes


def _fill(format_name: str, capacity_bytes: int, turn: int) -> None:
    files = SimulatedFiles(capacity_bytes=capacity_bytes)
    client = Client(files, format_name, careful=True)
    use(client)
    for error in client.errors:
        typed = isinstance(error, Unavailable | InvalidRequest | Closed)
        demand(typed, "I12", f"a full disk gave {type(error).__name__}: {error}")
    if client.store is not None and not client.store.failures():
        client.files.capacity_bytes = None
        before = len(client.acknowledged)
        client.create() if TOPIC not in client.store.topics() else None
        client.append([10])
        demand(len(client.acknowledged) == before + 1, "I12", "space came back, appends did not")
    files.capacity_bytes = None
    client.close()
    reopen(client, turn)


@row("F14", "odd-errors", invariants="I1 I2 I12", rounds=Rounds(8, 70, ALL))
def odd_errors(trial: Trial) -> None:
    """Each call fails once with EAGAIN, EINTR, EMFILE, EACCES or EROFS, as its kind may."""
    cases = [case for error, kinds in ERRORS.items() for case in _cases(trial.format, kinds, error)]
    _run(trial, cases)


@row("F14", "short-write", invariants="I1 I2 I12", rounds=Rounds(8, 70, ALL))
def short_write(trial: Trial) -> None:
    """Each write puts down a part of its bytes and fails."""
    _run(trial, _cases(trial.format, ["write_at"], "EIO:0.6", "EIO:0.1", "EIO:1.0"))


@row("F11", "reads", invariants="I2 I12", rounds=Rounds(2, 4, 4))
def failing_reads(trial: Trial) -> None:
    """Reads fail while records are read: it is told where, is no damage, and works again."""
    for case in ("read:sealed", "load:sealed", "read:active", "load:active")[: trial.rounds]:
        with trial.case(case, "calls") as wanted:
            if wanted:
                _fail_read(trial.format, *case.split(":"))


def _fail_read(format_name: str, kind: str, where: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"sealed"])
        store.roll(TOPIC)
        store.append(TOPIC, [b"active"])
        start = first_offset(format_name) + (where == "active")
        files.fail(kind, forever=True)
        try:
            list(store.scan(TOPIC, start=start))
        except RecordsMissing as error:
            demand(error.reason == UNREADABLE and error.first == start, "I4", f"it says: {error}")
            demand("byte" in str(error), "I12", f"it does not say where: {error}")
        else:
            demand(not files.history[-1].failed, "I12", "a failed read gave records")
        files.faults.clear()
        demand(list(read(store).values()) == [b"sealed", b"active"], "I1", "not readable again")
        demand(store.gaps(TOPIC) == (), "I4", "a read error was taken for damage")
