"""Protocols as steps: a generator yields what it asks of the object store, and is sent the answer.

    steps ──request──▶ run ──▶ object store
          ◀──answer or error──

So a protocol is plain code without input and output. `run` carries it out; a test carries out each
request now, later, twice or never, in any order with those of others.

A request that fails raises the object store's error at the `yield`. ObjectConflict and
ObjectMissing say that it had no effect; after ArchiveUnavailable nobody knows, and it may still
have one later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from lamina.errors import LaminaError
from lamina.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class Read:
    """Asks for a small object: `Stored`."""

    key: str


@dataclass(frozen=True, slots=True)
class Create:
    """Puts an object where none is."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces what a tag names (None: nothing), and is sent the new tag."""

    key: str
    data: bytes
    etag: str | None


@dataclass(frozen=True, slots=True)
class List:
    """Asks for the keys below a prefix, in order."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an object, which may be gone already."""

    key: str


Request: TypeAlias = Read | Create | Replace | List | Delete
_Result = TypeVar("_Result")
Steps: TypeAlias = Generator[Request, Any, _Result]


def perform(objects: Objects, request: Request) -> Any:
    """Carries out one request; raises what the object store raises."""
    match request:
        case Read(key):
            return objects.read(key)
        case Create(key, data):
            return objects.create(key, data)
        case Replace(key, data, etag):
            return objects.replace(key, data, etag)
        case List(prefix):
            return sorted(info.key for info in objects.list(prefix))
        case Delete(key):
            return objects.delete(key)


def run(objects: Objects, steps: Steps[_Result]) -> _Result:
    """Carries out a protocol from its first request to its result; raises what it raises."""
    return run_by(lambda request: objects, steps)


def run_by(way: Callable[[Request], Objects], steps: Steps[_Result]) -> _Result:
    """The same, with a way to the object store that depends on the request."""
    try:
        request = next(steps)
        while True:
            try:
                answer = perform(way(request), request)
            except LaminaError as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as stop:
        result: _Result = stop.value
        return result
