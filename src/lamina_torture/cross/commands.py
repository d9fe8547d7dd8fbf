"""Users at the command line: in this process, with `main`'s own way of ending."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click
import typer.testing

import lamina
from lamina.errors import EXIT_CODES, LaminaError, Unavailable, exit_code
from lamina.store.store import Store
from lamina_torture.cross.doors import _value
from lamina_torture.cross.ground import IN_ARCHIVE, Ground, Saw, read_over
from lamina_torture.cross.readers import BOTH, by_scan, read_only
from lamina_torture.cross.templates import GROUP, TOPIC, Record, environment
from lamina_torture.rows import demand, violated

CODES = (0, *EXIT_CODES.values())


@functools.cache
def _app() -> Any:
    """The command line as it is installed: this harness is one of its commands, not above it."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="lamina")
    return sys.modules[entry.load().__module__].app


def run(*words: str, given: bytes = b"") -> Saw:
    """Runs a command; what is no typed error is a violation."""
    result = typer.testing.CliRunner().invoke(_app(), list(words), input=given)
    error = result.exception
    output = result.stdout + result.stderr
    if isinstance(error, LaminaError):
        return Saw(code=exit_code(error), output=output + str(error), refused=error)
    if isinstance(error, OSError):
        return Saw(code=EXIT_CODES[Unavailable], output=output + str(error))
    if error is not None and not isinstance(error, SystemExit | click.ClickException):
        violated("I12", f"`lamina {' '.join(words)}`: {type(error).__name__}: {error}")
    demand(
        result.exit_code in CODES,
        "I12",
        f"`lamina {' '.join(words)}` ends with {result.exit_code}: {output[-300:]}",
    )
    return Saw(code=result.exit_code, output=output)


def _told(text: str) -> set[Record]:
    """The ranges that a complaint names, of either topic."""
    pairs = re.findall(r"offsets (\d+) (?:to|up to) (\d+)", text)
    return {
        (topic, at) for topic in BOTH for first, end in pairs for at in range(int(first), int(end))
    }


def _rows(lines: Iterable[str]) -> dict[Record, bytes]:
    found: dict[Record, bytes] = {}
    for line in lines:
        if line.startswith("{"):
            row = json.loads(line)
            value = row.get("value", row.get("payload"))
            if value is not None and "offset" in row and "topic" in row:
                found[row["topic"], row["offset"]] = _value(value)
    return found


def consume(ground: Ground) -> Saw:
    """`lamina topic consume`."""
    saw = run("topic", "consume", *BOTH, "--offset", ":end", "--data", ground.data)
    return _as_reader(ground, saw)


def _as_reader(ground: Ground, saw: Saw) -> Saw:
    """What a command printed; one that stops for a newer file or a bad page has said so."""
    saw.served, saw.told = _rows(saw.output.splitlines()), _told(saw.output)
    if saw.refused is not None:
        allowed = ground.damaged.kind in ("newer", "eio") or ground.damaged.is_identity
        demand(allowed, "I12", f"told: it stops: {type(saw.refused).__name__}: {saw.refused}")
        saw.reach, saw.refused = (), None
    return saw


def cat(ground: Ground) -> Saw:
    """`lamina cat`: consumes, lists and asks for an offset by time."""
    run("cat", "-L", "--data", ground.data)
    run("cat", "-Q", "-t", f"{TOPIC}:0:0", "--data", ground.data)
    saw = run("cat", "-C", "-t", TOPIC, "-o", "beginning", "-e", "-J", "--data", ground.data)
    saw = _as_reader(ground, saw)
    saw.topics = (TOPIC,)
    return saw


def sql(ground: Ground) -> Saw:
    """`lamina sql`, which goes on behind what is lost and names it."""
    query = f'select \'{TOPIC}\' as topic, _offset as "offset", value from "{TOPIC}"'  # noqa: S608  # our own name
    with capturing("lamina.engines") as warned:
        saw = run("sql", query, "--json", "--skip-lost", "--data", ground.data)
    saw.output += "\n".join(warned)
    saw = _as_reader(ground, saw)
    saw.topics = (TOPIC,)
    return saw


@contextlib.contextmanager
def capturing(logger: str) -> Iterator[list[str]]:
    """Gathers what a logger warns of."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(logger).removeHandler(handler)


def produce(ground: Ground) -> Saw:
    """`lamina topic produce` and `lamina cat -P`."""
    saw = run("topic", "produce", TOPIC, "--data", ground.data, given=b"more\n")
    run("cat", "-P", "-t", TOPIC, "--data", ground.data, given=b"more\n")
    return saw


def looks(ground: Ground) -> Saw:
    """Commands that list and describe topics, segments and groups."""
    where = ("--data", ground.data)
    saw = run("topic", "list", *where, "--json")
    _count(ground, saw)
    for words in (
        ("topic", "describe", TOPIC, "--segments"),
        ("topic", "retention", TOPIC),
        ("topic", "trim", TOPIC, "--before", "50"),
        ("topic", "delete-records", TOPIC, "--before", "50"),
        ("segment", "list", TOPIC),
        ("group", "list"),
        ("router", "list"),
        ("schema", "list", TOPIC),
        ("schema", "show", TOPIC),
        ("group", "describe", GROUP),
        ("group", "seek", GROUP, "--to", "start"),
        ("group", "delete", GROUP),
        ("topic", "delete", TOPIC),
    ):
        run(*words, *where)
    return saw


def _count(ground: Ground, saw: Saw) -> None:
    """What `topic list` counts is not less than what can be read."""
    if saw.code != 0:
        return
    for line in saw.output.splitlines():
        row = json.loads(line) if line.startswith("{") else {}
        name = row.get("name", row.get("topic"))
        if name in BOTH and "records" in row:
            wanted = len(ground.expected(("data", "cold", "archive"), (name,)))
            demand(row["records"] >= wanted, "I9", f"{name}: lists {row['records']} of {wanted}")


_SCHEMA = b'{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'


def changes(ground: Ground) -> Saw:
    """Commands that change and keep all records: create, alter, seek, delete of a new group."""
    where = ("--data", ground.data)
    saw = run("topic", "alter", TOPIC, "-c", f"retention.ms={1 << 50}", *where)
    run("topic", "create", "third", "--format", ground.template.format, *where)
    run("schema", "set", "third", "-", *where, given=_SCHEMA)
    run("topic", "add-partitions", "third", "--total", "3", *where)
    run("group", "seek", "new", "--to", "start", "--topics", TOPIC, "--yes", *where)
    run("group", "delete", "new", "--yes", *where)
    if ground.template.format == "wal":
        run("topic", "create", "fourth", "--format", "wal", *where)
        run("router", "create", "reds", "third", "fourth", "--tag", "red", *where)
        run("router", "alter", "reds", "--tag", "blue", *where)
        run("router", "delete", "reds", "--yes", *where)
    return saw


def topic_trim(ground: Ground) -> Saw:
    """`lamina topic trim --yes`."""
    saw = run("topic", "trim", TOPIC, "--before", "60", "--yes", "--data", ground.data)
    saw.removed = lambda record: record[0] == TOPIC and record[1] < 60
    return saw


def topic_delete_records(ground: Ground) -> Saw:
    """`lamina topic delete-records --yes`."""
    saw = run("topic", "delete-records", TOPIC, "--before", "60", "--yes", "--data", ground.data)
    saw.removed = lambda record: record[0] == TOPIC and record[1] < 60
    return saw


def topic_retention(ground: Ground) -> Saw:
    """`lamina topic retention --yes`, with nothing that is due."""
    return run("topic", "retention", TOPIC, "--yes", "--data", ground.data)


def verify(ground: Ground) -> Saw:
    """`lamina verify` of the damaged tree: it finds the damage and ends with 1."""
    tree = ground.damaged.path.split("/")[0]
    saw = run("verify", str(ground.root / tree), "--json")
    saw.is_finder = True
    return saw


def doctor(ground: Ground) -> Saw:
    """`lamina doctor --thorough`: no cell may pass unsaid what costs records.

    What of a damaged file a reader beside it can still be served costs nothing.
    """
    run("doctor", "--data", ground.data, "--json")
    saw = run("doctor", "--thorough", "--data", ground.data, "--json")
    saw.is_finder = True
    with contextlib.suppress(LaminaError):
        read = read_only(ground)
        saw.served, saw.told, saw.postponed = read.served, read.told, read.postponed
    return saw


def dump(ground: Ground) -> Saw:
    """`lamina dump --verify` of the damaged file."""
    if ground.damaged.data is None:
        saw = run("dump", str(ground.where))
        demand(saw.code == EXIT_CODES[lamina.InvalidRequest], "I12", "a missing file is dumped")
        return Saw()
    run("segment", "dump", str(ground.where), "--limit", "3")
    return run("dump", str(ground.where), "--verify", "--json")


# ---------------------------------------------------------------- the archive


def tier_looks(ground: Ground) -> Saw:
    """`lamina tier show`, `status` and `orphans` without `--execute`."""
    run("tier", "show", ground.archive, "--json")
    run("tier", "orphans", ground.archive, "--age-ms", "0")
    return run("tier", "status", "--data", ground.data, "--json")


def tier_archive(ground: Ground) -> Saw:
    """`lamina tier archive`."""
    return run("tier", "archive", "--data", ground.data, "--json")


def rebuild(ground: Ground) -> Saw:
    """`lamina tier rebuild`, then its orphans are removed: the only copy of nothing goes."""
    saw = Saw()
    for topic in BOTH:
        each = run("tier", "rebuild", ground.archive, topic)
        saw = saw if saw.code else each
    run("tier", "orphans", ground.archive, "--age-ms", "0", "--execute")
    with lamina.open(f"file://{ground.archive}", read_only=True) as store:
        read = by_scan(store)
    saw.served, saw.told, saw.reach = read.served, read.told, IN_ARCHIVE
    if saw.code:  # it says that something cannot be listed: then nothing is silent
        saw.told |= set(ground.template.records)
    saw.refused = None
    return saw


def orphans(ground: Ground) -> Saw:
    """`lamina tier orphans --execute`: what holds records of a topic is none."""
    saw = run("tier", "orphans", ground.archive, "--age-ms", "0", "--execute")
    saw.refused = None
    return saw


def restore(ground: Ground) -> Saw:
    """`lamina tier restore` into a new directory: all that the archive has is in it, or told of.

    The new directory has a cold directory of its own, as every store must.
    """
    with environment(ground.root / "other", archived=ground.template.is_archived):
        return _restore(ground)


def _restore(ground: Ground) -> Saw:
    target = str(ground.root / "restored")
    saw = run("tier", "restore", ground.archive, target, "--json")
    refused: Any = saw.refused
    try:
        read = _restored(target)
    except LaminaError as error:
        demand(saw.code != 0, "I12", f"restored with exit 0, and it does not open: {error}")
        read = Saw(served={})
    finally:
        shutil.rmtree(target, ignore_errors=True)
    saw.served, saw.told, saw.reach = read.served, read.told, IN_ARCHIVE
    if isinstance(refused, Unavailable) and ground.damaged.kind == "eio":
        saw.reach = ()  # it stops, to be run again when the archive can be read
    elif refused is not None:  # it says that it stops, and at which file
        saw.told |= set(ground.template.records)
        if not read.served:
            saw.refused = refused
            return saw
    saw.refused = None
    if saw.code == 0:
        silent = ground.known(IN_ARCHIVE, BOTH) - (read.served or {}).keys()
        demand(not silent, "I4", f"exit 0, and {sorted(silent)[:3]} were not restored")
    return saw


def _restored(target: str) -> Saw:
    with Store(target, archive="") as store:
        names = store.topics()
        return by_scan(store) if set(names) >= set(BOTH) else _some(store, names)


def _some(store: Any, names: list[str]) -> Saw:
    return read_over(store, lambda topic, at: store.scan(topic, start=at), names)
