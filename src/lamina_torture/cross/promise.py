"""What every cell promises: a few rules, each applied to any format, tier, damage and user.

Each rule is a function of what a user saw and of the ground it saw it on; it raises a Violation
that names the rule. `judge` applies them all, and then again to what is left: the store is opened,
appended to, opened once more and read to its end.
"""

from __future__ import annotations

from collections.abc import Collection

from lamina.errors import CorruptData, LaminaError, NewerFormat
from lamina_torture.cross.ground import Ground, Saw
from lamina_torture.cross.templates import WAL_PATH, Record
from lamina_torture.rows import demand

SEALED_TIERS = ("sealed", "copied", "cold")

RULES: dict[str, str] = {
    "served": "every record of which a place within reach has a sound copy is served, at its"
    " offset and with its bytes",
    "told": "whoever meets a record that cannot be served is told the range and the reason; it is"
    " neither left out in silence nor promised for later",
    "true": "nothing is served that was never appended, and nothing with other bytes",
    "typed": "every failure is a typed error that names the file: no untyped exception, no hang,"
    " no dead process",
    "opens": "a store opens over any damage but three: a file that a newer version wrote, the"
    " file by which it knows that the directory is its own, and, until it can be read again, a page"
    " by which it decides where a log ends or what its metadata say",
    "kept": "what is left of a damaged, foreign or newer file stays on the disk, in its place or"
    " set aside; a newer one stays as it is, and whole again it is read again",
    "found": "verify finds damage to a record in any file it is given, and ends with 1; doctor"
    " --thorough ends with 1 where records are out of reach",
    "usable": "afterwards the store is opened, appended to and opened again, and holds the same",
    "last copy": "nothing that moves, removes or rewrites takes the last sound copy of a record"
    " that it was not asked to remove",
    "let go": "descriptors, threads and maps are those of before",
}
"""The rules of all cells, by name; docs/reliability.md shows them."""


def may_refuse(ground: Ground, error: LaminaError) -> bool:
    """Whether opening may be refused with an error: rule `opens`."""
    damaged = ground.damaged
    if isinstance(error, NewerFormat):
        return damaged.kind == "newer"
    if damaged.kind == "eio":
        return damaged.path in str(error) and is_decisive(ground)
    if damaged.is_identity:
        return isinstance(error, CorruptData) and error.path.endswith("broker.id")
    return False


def is_decisive(ground: Ground) -> bool:
    """Whether nobody can go on who has not read a file: recovery decides by it where a log ends.

    A page of a sealed segment costs the records on it, one of a derived file nothing. An archive
    that cannot be read is asked again later, whatever it is that cannot.
    """
    damaged = ground.damaged
    sealed = [path for tier in SEALED_TIERS for path in ground.template.tiers.get(tier, ())]
    is_dispensable = damaged.is_derived or (damaged.path in sealed and not damaged.is_identity)
    return damaged.path.startswith("archive/") or not is_dispensable


def check_refused(ground: Ground, error: LaminaError) -> None:
    """Holds a refusal to rules `opens` and `typed`."""
    damaged = ground.damaged
    what = f"{type(error).__name__}: {error}"
    demand(
        may_refuse(ground, error),
        "I12",
        f"opens: refused, {damaged.path} is {damaged.kind}: {what}",
    )
    if not isinstance(error, CorruptData):
        return
    demand(
        damaged.path.endswith(error.path.lstrip("/")) or error.path.endswith(damaged.path),
        "I12",
        f"typed: it names {error.path}, not {damaged.path}",
    )


def check_served(ground: Ground, saw: Saw) -> set[Record]:
    """Holds what a reader saw to rules `true`, `served` and `told`; returns what was missing."""
    assert saw.served is not None
    records = ground.template.records
    torn = torn_tail(ground)
    for record, value in saw.served.items():
        if record in torn and value == b"more":
            continue  # what cannot be told from a torn append was never acknowledged, as it seems
        if record in records:
            demand(records[record] == value, "I2", f"true: {record} reads as {value[:30]!r}")
        else:
            demand(value == b"more", "I2", f"true: {record} was never appended: {value[:30]!r}")
    known = {each for each in ground.known(saw.reach, saw.topics) if not saw.removed(each)}
    missing = known - saw.served.keys()
    expected = ground.expected(saw.reach, saw.topics)
    lost = sorted(missing & expected)
    if is_out_of_reach(ground):
        lost = []
    demand(not lost, "I4", f"served: {_shown(lost)} have sound copies and are not served")
    silent = sorted(missing - saw.told - torn)
    demand(not silent, "I4", f"told: {_shown(silent)} are missing without a word")
    for record, error in saw.postponed.items():
        _check_postponed(ground, record, error)
    return missing


def torn_tail(ground: Ground) -> set[Record]:
    """Records at the end of the newest WAL file behind which no sound one lies.

    A killed store leaves nothing else that knows of them: damage there looks like an append that
    was never finished, and is cut off like one.
    """
    damaged = ground.damaged
    newest = max((path for path in ground.template.files if is_wal(path)), default="")
    if damaged.path != newest:
        return set()
    sound = [
        copy.start
        for copy in ground.template.copies
        if copy.path == newest and copy not in damaged.hurt
    ]
    return {copy.record for copy in damaged.hurt if copy.start > max(sound, default=-1)}


def is_wal(path: str) -> bool:
    """Whether a path is that of a file of the write-ahead log."""
    return path.startswith(WAL_PATH) and path.endswith(".log")


def is_out_of_reach(ground: Ground) -> bool:
    """Whether sound records may be out of reach for now.

    Those of a newer file are, until a newer version reads it; and those of which nothing but a page
    that cannot be read, and holds none itself, says where they are.
    """
    damaged = ground.damaged
    is_page = damaged.kind == "eio" and not damaged.hurt and is_decisive(ground)
    return damaged.kind == "newer" or is_page


def _check_postponed(ground: Ground, record: Record, error: LaminaError) -> None:
    """A reader may be sent away only from a page that cannot be read, or from a newer file."""
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, NewerFormat):
        demand(ground.damaged.kind == "newer", "I12", f"told: {record} is called newer: {what}")
        demand(error.path, "I12", f"typed: no file is named for {record}: {what}")
    else:
        demand(ground.damaged.kind == "eio", "I12", f"told: {record} is promised for later: {what}")


def _shown(records: list[Record]) -> str:
    shown = ", ".join(f"{topic}/{offset}" for topic, offset in records[:4])
    return f"{len(records)} records ({shown}{'…' if len(records) > 4 else ''})"


def check_found(ground: Ground, saw: Saw, user: str) -> None:
    """Holds what looks for damage to rule `found`."""
    damaged = ground.damaged
    if not must_find(ground, user, (saw.served or {}).keys()):
        return
    what = f"found: `{user}` ends with {saw.code}, {damaged.path} is {damaged.kind}"
    demand(saw.code == 1, "I4", what)


def must_find(ground: Ground, user: str, served: Collection[Record]) -> bool:
    """Whether a finder has to see the damage, which leaves readers the records in `served`.

    `verify` knows nothing but files: that the newest of them ended earlier or is gone, no other
    file may tell. `doctor` tells of what is out of reach.
    """
    damaged = ground.damaged
    if not damaged.hurt:
        return False
    newest = damaged.path in ground.template.tiers.get("active", ()) or "/wal/" in damaged.path
    if damaged.kind in ("cut", "gone") and newest:
        return False
    if damaged.kind == "gone" and not _has_neighbours(ground):
        return False
    if user == "doctor":
        everywhere = ("data", "cold", "archive")
        out_of_reach = ground.known(everywhere, ("t", "n")) - ground.expected(
            everywhere, ("t", "n")
        )
        return bool(out_of_reach - torn_tail(ground) - set(served))
    return not {copy.record for copy in damaged.hurt} <= torn_tail(ground)


def _has_neighbours(ground: Ground) -> bool:
    """Whether files before and behind a missing one show that it is missing."""
    damaged = ground.damaged
    folder = damaged.path.rpartition("/")[0]
    hurt = [copy.record[1] for copy in damaged.hurt]
    others = [
        copy.record[1]
        for copy in ground.template.copies
        if copy.path.rpartition("/")[0] == folder and copy.path != damaged.path
    ]
    return any(at < min(hurt) for at in others) and any(at > max(hurt) for at in others)
