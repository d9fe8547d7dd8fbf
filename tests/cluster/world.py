"""A simulated object store under a scheduler: requests now, later, twice, or without an answer.

Brokers are generators of requests (`lamina.cluster.steps`), called actors here. `explore` runs a
scenario through every order of events, by running it again for each one: a path is a list of which
of the possible moves was made. `wander` does the same by chance, for longer scenarios.

A tag is a checksum of the content, as on S3: contents that are equal have equal tags.
"""

from __future__ import annotations

import hashlib
import random
import sys
import types
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from lamina.cluster.steps import Create, Delete, List, Read, Replace, Request
from lamina.errors import ArchiveUnavailable, LaminaError, ObjectConflict, ObjectMissing
from lamina.storage.objects import Stored

_WRITES = (Create, Replace, Delete)
Script = Generator[Request, Any, Any]


def tag_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@dataclass
class World:
    """The object store, and a clock that the scheduler moves."""

    there: dict[str, bytes] = field(default_factory=dict)
    now_ms: int = 0

    def apply(self, request: Request) -> Any:
        match request:
            case Read(key):
                if key not in self.there:
                    raise ObjectMissing(key)
                return Stored(self.there[key], tag_of(self.there[key]))
            case Create(key, data):
                return self._put(key, data, None) and None
            case Replace(key, data, etag):
                return self._put(key, data, etag)
            case List(prefix):
                return sorted(key for key in self.there if key.startswith(f"{prefix}/"))
            case Delete(key):
                self.there.pop(key, None)
                return None

    def _put(self, key: str, data: bytes, etag: str | None) -> str:
        found = tag_of(self.there[key]) if key in self.there else None
        if found != etag:
            raise ObjectConflict(key)
        self.there[key] = data
        return tag_of(data)

    def carry_out(self, script: Script) -> Any:
        """Runs a script alone, to its result."""
        actor = Actor("alone", script)
        while actor.request is not None:
            actor.ask(self)
        if actor.error is not None:
            raise actor.error
        return actor.result


@dataclass
class Actor:
    """A script on its way: the request that waits to be carried out, or how it has ended."""

    name: str
    script: Script
    request: Request | None = None
    result: Any = None
    error: LaminaError | None = None

    def __post_init__(self) -> None:
        self._on(lambda: next(self.script))

    def _on(self, go: Callable[[], Request]) -> None:
        try:
            self.request = go()
        except StopIteration as stop:
            self.request, self.result = None, stop.value
        except LaminaError as error:
            self.request, self.error = None, error

    def outcome(self, world: World) -> Any:
        """Carries the request out; returns the answer, or the error."""
        assert self.request is not None
        try:
            return world.apply(self.request)
        except LaminaError as error:
            return error

    def take(self, answer: Any) -> None:
        """Goes on with an answer, or with an error."""
        if isinstance(answer, LaminaError):
            self._on(lambda: self.script.throw(answer))
        else:
            self._on(lambda: self.script.send(answer))

    def ask(self, world: World) -> None:
        self.take(self.outcome(world))


@dataclass
class Scenario:
    """Some actors in one world; `check` raises AssertionError when all have ended."""

    world: World
    actors: list[Actor]
    check: Callable[[], None]
    faults: int = 0
    faulty: str = ""
    """Whose requests may go wrong; everybody's if it is empty."""
    late: list[Request] = field(default_factory=list)

    def moves(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for actor in self.actors:
            if actor.request is not None:
                found.append(lambda actor=actor: actor.ask(self.world))  # type: ignore[misc]
        for request in self.late:
            found.append(lambda request=request: self._land(request))  # type: ignore[misc]
        if self.faults:
            for actor in self.actors:
                if self.faulty in ("", actor.name) and isinstance(actor.request, _WRITES):
                    found += [
                        lambda actor=actor: self._lose_answer(actor),  # type: ignore[misc]
                        lambda actor=actor: self._delay(actor),  # type: ignore[misc]
                        lambda actor=actor: self._double(actor),  # type: ignore[misc]
                        lambda actor=actor: self._drop(actor),  # type: ignore[misc]
                    ]
        return found

    def _try(self, request: Request) -> None:
        try:
            self.world.apply(request)
        except LaminaError:
            return

    def _land(self, request: Request) -> None:
        self.late.remove(request)
        self._try(request)

    def _lose_answer(self, actor: Actor) -> None:
        self.faults -= 1
        assert actor.request is not None
        self._try(actor.request)
        actor.take(ArchiveUnavailable("the answer was lost"))

    def _delay(self, actor: Actor) -> None:
        self.faults -= 1
        assert actor.request is not None
        self.late.append(actor.request)
        actor.take(ArchiveUnavailable("no answer came in time"))

    def _drop(self, actor: Actor) -> None:
        self.faults -= 1
        actor.take(ArchiveUnavailable("it never arrived"))

    def _double(self, actor: Actor) -> None:
        self.faults -= 1
        assert actor.request is not None
        self.late.append(actor.request)
        actor.ask(self.world)

    def play(self, choose: Callable[[int], int], limit: int = 500) -> None:
        """Makes moves until none is left; then judges."""
        for _ in range(limit):
            moves = self.moves()
            if not moves:
                break
            moves[choose(len(moves))]()
        self.check()


def explore(make: Callable[[], Scenario]) -> int:
    """Plays every order of events; returns how many there were."""
    waiting: list[tuple[int, ...]] = [()]
    played = 0
    while waiting:
        path = waiting.pop()
        widths: list[int] = []

        def choose(width: int, path: tuple[int, ...] = path, widths: list[int] = widths) -> int:
            widths.append(width)
            return path[len(widths) - 1] if len(widths) <= len(path) else 0

        make().play(choose)
        played += 1
        taken = (*path, *([0] * (len(widths) - len(path))))
        for at in range(len(path), len(widths)):
            waiting += [(*taken[:at], other) for other in range(1, widths[at])]
    return played


def wander(make: Callable[[], Scenario], seeds: range) -> None:
    """Plays one order of events for each seed."""
    for seed in seeds:
        luck = random.Random(seed)
        make().play(luck.randrange)


def mutant(module: types.ModuleType, old: str, new: str) -> Any:
    """Makes a copy of a module with one thing changed in its text."""
    assert module.__file__ is not None
    with open(module.__file__) as file:
        source = file.read()
    assert source.count(old) == 1, f"{module.__name__} has {source.count(old)} times: {old}"
    made = types.ModuleType(module.__name__)
    made.__dict__["__file__"] = module.__file__
    kept = sys.modules[module.__name__]
    sys.modules[module.__name__] = made  # dataclasses look their module up
    try:
        exec(compile(source.replace(old, new), module.__file__, "exec"), made.__dict__)
    finally:
        sys.modules[module.__name__] = kept
    return made
