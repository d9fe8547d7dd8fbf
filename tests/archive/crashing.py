"""A story of appends and uploads, ended at its steps: by power loss, by a kill, by a failing call.

A story promises more and more while it is told. Wherever it ends, what was promised by then must
hold, before and after the rest is archived.

`SOME` steps are enough for every change: each call that changes the store is cut off before and
after, and of the steps between two of them every other or third. `ALL` is every step, each with
every choice of what a disk may lose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pytest

from lamina.storage.files import Files
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import Objects
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import TOPIC, memory
from tests.support.failing_objects import CHANGING, FailingObjects, When

ARCHIVE = "/srv/archive"
CHOICES: tuple[Choice, ...] = ("dropped", "kept", 1)
STRIDE = 3

Steps = Literal["some", "all"]
STEPS = [pytest.param("some"), pytest.param("all", marks=pytest.mark.long)]


class Promise(Protocol):
    """What must hold, as far as it was answered."""

    def now(self) -> Any:
        """Returns the promise as it is now, as a value that does not change any more."""
        ...


@dataclass(frozen=True, slots=True)
class Story:
    """How a store is opened, what is done with it, and what must be found afterwards."""

    opened: Callable[[Files, Objects], Store]
    promise: Callable[[], Any]
    fill: Callable[[Store, Any], None]
    hold: Callable[[Store, Objects, Any], None]
    is_empty: Callable[[Any], bool]
    """Whether nothing was promised yet: then the topic may be missing."""


class Killed(BaseException):
    """The process ended here."""


@contextlib.contextmanager
def _said(where: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


def lose_power(story: Story, steps: Steps) -> int:
    """Loses power before steps of disk and archive, a directory on the same simulated disk.

    Returns how many steps there are.
    """
    files, promise = SimulatedFiles(), story.promise()
    moments: list[tuple[Disk, Any]] = []
    with story.opened(files, DirectoryObjects(files, ARCHIVE)) as store:
        files.before = lambda kind, path: moments.append((files.snapshot(), promise.now()))
        story.fill(store, promise)
        files.before = None
    for step, (disk, promised) in enumerate(moments):
        if steps == "some" and step % STRIDE:
            continue
        choices = CHOICES if steps == "all" else (CHOICES[step // STRIDE % len(CHOICES)],)
        for choice in choices:
            after = disk.crash(choice)
            objects = DirectoryObjects(after, ARCHIVE)
            with _said(f"step {step}, {choice}"), story.opened(after, objects) as store:
                if TOPIC not in store.topics():
                    assert story.is_empty(promised), "the topic is gone"
                    continue
                story.hold(store, objects, promised)
    return len(moments)


def _calls(story: Story, when: When, steps: Steps) -> list[tuple[int, str]]:
    """Returns the calls of the object store to cut off, with a name for messages."""
    counting = FailingObjects(memory())
    with story.opened(SimulatedFiles(), counting) as store:
        story.fill(store, story.promise())
    kinds = {kind for kind, _ in counting.calls}
    assert {"create", "read_range", "size", "replace", "delete"} <= kinds
    return [
        (step, f"call {step}, {when} {kind} {key}")
        for step, (kind, key) in enumerate(counting.calls)
        if steps == "all" or kind in CHANGING or (when == "before" and step % 2 == 0)
    ]


def kill(story: Story, when: When, steps: Steps) -> int:
    """Ends the process before or after calls of the object store; returns how often."""
    calls = _calls(story, when, steps)
    for step, name in calls:
        files, objects, promise = SimulatedFiles(), FailingObjects(memory()), story.promise()
        objects.fail_at, objects.when, objects.error = step, when, Killed
        store = story.opened(files, objects)
        with contextlib.suppress(Killed):
            story.fill(store, promise)
        with _said(name), story.opened(files.snapshot().restart(), objects.inner) as again:
            story.hold(again, objects.inner, promise.now())
        store._lookup.is_closed = True
    return len(calls)


def fail(
    story: Story,
    when: When,
    steps: Steps,
    *,
    refused: Callable[[Store, Any, Exception], None] | None = None,
) -> int:
    """Lets a call fail once and archives again; returns how often.

    `refused` says what may follow from a call of the story itself that failed.
    """
    calls = _calls(story, when, steps)
    for step, name in calls:
        files, objects, promise = SimulatedFiles(), FailingObjects(memory()), story.promise()
        objects.fail_at, objects.when = step, when
        with _said(name), story.opened(files, objects) as store:
            try:
                story.fill(store, promise)
            except Exception as error:
                if refused is None:
                    raise
                refused(store, promise, error)
            store.archive()
            objects.fail_at = None
            story.hold(store, objects, promise.now())
    return len(calls)
