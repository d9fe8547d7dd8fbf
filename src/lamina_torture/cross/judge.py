"""Runs one case and holds it to the promise: the user, then what is left, then what is let go."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from lamina.errors import LaminaError
from lamina_torture.budgets import open_below, own_threads
from lamina_torture.cross import promise
from lamina_torture.cross.ground import Ground, Saw
from lamina_torture.cross.readers import by_scan
from lamina_torture.cross.templates import NEIGHBOUR, TOPIC, Record, environment
from lamina_torture.cross.users import User
from lamina_torture.rows import demand, violated

HANG_S = 120
LET_GO_S = 5
AFTER = b"more"


def run_case(ground: Ground, user: User) -> str:
    """Runs a user on a damaged root; raises a Violation, or returns how it ended."""
    before = own_threads()
    with environment(ground.root, archived=ground.template.is_archived):
        ended = _bounded(lambda: _judge(ground, user))
    _check_let_go(ground, before)
    return ended


def _bounded(work: Callable[[], str]) -> str:
    """Does something in a thread, which must come to an end."""
    done: list[str] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="cell", daemon=True)
    thread.start()
    thread.join(HANG_S)
    demand(not thread.is_alive(), "I12", f"typed: it hangs for more than {HANG_S} s")
    if failed:
        raise failed[0]
    return done[0]


def _judge(ground: Ground, user: User) -> str:
    try:
        saw = user.run(ground)
    except LaminaError as error:
        return _judge_refused(ground, error)
    if saw.served is not None and saw.refused is None:
        promise.check_served(ground, saw)
    if saw.is_finder:
        promise.check_found(ground, saw, user.name)
    return _judge_left(ground, saw)


def _judge_refused(ground: Ground, error: LaminaError) -> str:
    """Refused as newer, or as nobody's: the file is as it was, and whole again all is there."""
    promise.check_refused(ground, error)
    ground.heal()
    _check_kept(ground, Saw(), set(ground.template.records))
    if ground.damaged.kind != "eio":  # of a page that is read again, the file itself is judged
        ground.where.parent.mkdir(parents=True, exist_ok=True)
        ground.where.write_bytes(ground.template.files[ground.damaged.path])
    with ground.open() as store:
        found = by_scan(store).served or {}
    lost = ground.template.records.keys() - found.keys()
    demand(not lost, "I8", f"kept: with the file whole again, {sorted(lost)[:3]} are gone")
    return "refused"


def _judge_left(ground: Ground, saw: Saw) -> str:
    """Opens, reads, appends, opens and reads: twice the same, and all that should be there."""
    if ground.damaged.kind == "eio":  # whatever was out of reach was never lost
        ground.heal()
        healed = replace(ground.damaged, kind="healed", hurt=frozenset())
        ground = replace(ground, damaged=healed)
    try:
        store = ground.open()
    except LaminaError as error:
        return _judge_refused(ground, error)
    with store:
        first = _read(ground, saw, store)
        try:
            ack = store.append(TOPIC, [AFTER], partition=0)
        except LaminaError as error:
            violated("I12", f"usable: nothing can be appended: {type(error).__name__}: {error}")
        taken = ground.template.records.keys() - promise.torn_tail(ground)
        demand((TOPIC, ack.base_offset) not in taken, "I3", f"usable: {ack.base_offset} used twice")
    with ground.open() as store:
        again = _read(ground, saw, store)
        value = (again.served or {}).get((TOPIC, ack.base_offset))
        demand(value == AFTER, "I7", "usable: what was appended behind the damage is gone")
    gone = (first.served or {}).keys() - (again.served or {}).keys()
    demand(not gone, "I5", f"usable: opened once more, {sorted(gone)[:3]} are gone")
    _check_kept(ground, saw, ground.template.records.keys() - (again.served or {}).keys())
    return "held"


def _read(ground: Ground, saw: Saw, store: object) -> Saw:
    read = by_scan(store)
    read.removed, read.topics = saw.removed, saw.topics
    promise.check_served(ground, read)
    return read


def _check_kept(ground: Ground, saw: Saw, missing: set[Record]) -> None:
    """Rule `kept`: the bytes that nobody could read are somewhere below the root."""
    damaged = ground.damaged
    if damaged.data is None or damaged.kind == "eio":
        return
    if f"/{NEIGHBOUR}/" in damaged.path and saw.removed((NEIGHBOUR, 0)):
        return  # the topic was deleted, and its files with it
    if damaged.kind == "newer" and not damaged.is_derived:
        is_there = ground.where.exists() and _starts(ground.where.read_bytes(), damaged.data)
        if is_there:
            return
    if damaged.kind in ("foreign", "newer"):
        pieces = [] if damaged.is_derived else [damaged.data]
    else:
        wanted = missing - promise.torn_tail(ground)
        pieces = [
            damaged.data[copy.start : copy.end]
            for copy in damaged.hurt
            if copy.record in wanted and not saw.removed(copy.record)
        ]
    if damaged.hurt and all(saw.removed(copy.record) for copy in damaged.hurt):
        return
    pieces = [piece.strip(b"\0") for piece in pieces]
    left = [path.read_bytes() for path in ground.root.rglob("*") if path.is_file()]
    for piece in pieces:
        demand(
            not piece or any(piece in data for data in left),
            "I4",
            f"kept: {len(piece)} bytes of {damaged.path} ({damaged.kind}) are nowhere any more",
        )


def _starts(found: bytes, wanted: bytes) -> bool:
    """Whether a file holds what it held; prepared space behind it may go."""
    return found.startswith(wanted.rstrip(b"\0"))


def _check_let_go(ground: Ground, threads_before: int) -> None:
    """Rule `let go`: nothing of the root is open or mapped, no thread is left."""
    inside = f"{ground.root}/"
    deadline = time.monotonic() + LET_GO_S
    gc.collect()
    while True:
        held = open_below(inside)
        more = own_threads() - threads_before
        if not held and more <= 0:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    names = [thread.name for thread in threading.enumerate()][-max(more, 0) :] if more > 0 else []
    violated("I12", f"let go: {held[:3]} are open, {more} threads more: {names[:5]}")


def lay(ground: Ground) -> None:
    """Lays a root out and damages it."""
    shutil.rmtree(ground.root, ignore_errors=True)
    ground.template.lay_out(ground.root)
    where, data = ground.where, ground.damaged.data
    if data is None:
        where.unlink()
    else:
        where.write_bytes(data)
