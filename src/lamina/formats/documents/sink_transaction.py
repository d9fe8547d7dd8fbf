"""A sink's transaction (`commit.json`) and an application's last one (`state.json`), as JSON.

    {"version": 1, "application": "billing", "number": 17, "query": "…",
     "parts": [{"name": "3f….part", "runs": [
         {"topic": "orders", "epoch": 1, "partition": 0, "rows": 9000,
          "position": 0, "length": 1048576, "crc32c": 305419896}, …]}, …], "crc32": "…"}

    {"version": 1, "application": "billing", "number": 17, "query": "…", "crc32": "…"}

Truth: `commit.json` is what commits a transaction; `state.json` has which number of an
application was stored last. `query` is the streaming query that numbers its writes; empty for
others. A part is a plain run of Arrow record batches, each as one IPC message without its schema:
that is the topic's format's. `position` and `length` are bytes of the part, `crc32c` is over them.
Runs are in the order in which they are stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
_COMMIT = {"version": int, "application": str, "number": int, "query": str, "parts": list}
_STATE = {"version": int, "application": str, "number": int, "query": str}
_PART = {"name": str, "runs": list}
_RUN = {
    "topic": str,
    "epoch": int,
    "partition": int,
    "rows": int,
    "position": int,
    "length": int,
    "crc32c": int,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Some rows of a part that go to one partition."""

    topic: str
    epoch: int
    partition: int
    rows: int
    position: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one task staged: a file, and what is where in it."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Everything that is stored together: the application's write of one number."""

    application: str
    number: int
    query: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The last number that was stored for an application."""

    application: str
    number: int
    query: str


def encode_transaction(transaction: Transaction) -> bytes:
    """Encodes a transaction."""
    return _sealed({"version": VERSION, **asdict(transaction)})


def encode_state(state: State) -> bytes:
    """Encodes an application's state."""
    return _sealed({"version": VERSION, **asdict(state)})


def _sealed(fields: dict[str, Any]) -> bytes:
    plain: dict[str, Any] = json.loads(json.dumps(fields))  # tuples become lists, as when read
    return (json.dumps(plain | {strict_json.SEAL: strict_json.seal(plain)}) + "\n").encode()


def decode_transaction(buffer: Buffer) -> Transaction:
    """Decodes a transaction; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = _opened(buffer, "the transaction", _COMMIT)
    parts = []
    for number, given in enumerate(fields["parts"]):
        part = strict_json.as_object(given, f"part {number}")
        strict_json.check_fields(part, f"part {number}", _PART)
        if "/" in part["name"] or part["name"].startswith("."):
            raise CorruptData("a part's name leads out of its directory", found=part["name"])
        parts.append(Part(part["name"], tuple(_run(each) for each in part["runs"])))
    return Transaction(fields["application"], fields["number"], fields["query"], tuple(parts))


def _run(given: object) -> Run:
    fields = strict_json.as_object(given, "a run")
    strict_json.check_fields(fields, "a run", _RUN)
    return Run(**fields)


def decode_state(buffer: Buffer) -> State:
    """Decodes an application's state; raises CorruptData or NewerFormat."""
    fields = _opened(buffer, "the state", _STATE)
    return State(fields["application"], fields["number"], fields["query"])


def _opened(buffer: Buffer, where: str, fields: dict[str, type]) -> dict[str, Any]:
    document = strict_json.parse(buffer)
    document = strict_json.check_sealed(document, VERSION)
    strict_json.check_fields(document, where, fields)
    return document
