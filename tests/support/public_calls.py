"""Calls every public method of an object with arguments that make no sense, found by inspection.

What a user can reach is looked up, not listed: a new method or parameter is called by itself. A
call must return or raise a LaminaError, and soon. (Python's own TypeError for a missing or unknown
argument never comes up: a call names each parameter once.)
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.api import GroupApi, StoreApi
from lamina.api.memberships import Committed, Identity, JoinRequest
from lamina.client.message import TopicPartition
from lamina.errors import LaminaError

SOON_S = 15.0
FORMATS = {"orders": "keratin", "framed": "frame", "logged": "wal"}


def anything(*_: Any, **__: Any) -> None:
    """A function where none is meant; a program's own callback may raise what it likes."""


ABSURD: tuple[Any, ...] = (
    None,
    True,
    -1,
    -(2**63) - 1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    1j,
    "",
    "0",
    "\0",
    "../x",
    "/",
    ".",
    "\ud800",
    "ä" * 200,
    "x" * 100_000,
    b"",
    b"\xff",
    bytearray(b"x"),
    [],
    [None],
    ["x"],
    [-1],
    [2**64],
    [[1]],
    [{}],
    [{"value": 1}],
    [{"value": b"x", "timestamp": 2**70}],
    [{"value": b"x", "nothing": 1}],
    (1, 2),
    {},
    {"x": "y"},
    {1: 2},
    set(),
    object(),
    anything,
    np.float64("nan"),
    np.array(["x"]),
    np.array([[1]]),
    pa.array([None, "x"]),
    pa.table({"offset": ["x"]}),
    pa.table({"value": [1, 2]}),
    pa.table([[1], [1]], names=["offset", "offset"]),
    [{"value": b"x", "headers": 7}],
    [{"value": b"x", "headers": [{1: 2}]}],
    TopicPartition("orders", -7, -7),
    TopicPartition("nothing", 0, 0),
    TopicPartition(None, None, None),  # type: ignore[arg-type]
    [TopicPartition("orders", "0", "x")],  # type: ignore[arg-type]
    iter(()),
)

CONFIGS: tuple[Any, ...] = (
    None,
    True,
    -5,
    2**64,
    10**400,
    0.5,
    float("nan"),
    "",
    "x",
    "\0",
    "\ud800",
    b"x",
    [],
    {},
    object(),
)
"""Values for each setting that there is."""

VALID: dict[str, Any] = {
    "topic": "orders",
    "topics": ["orders"],
    "name": "orders",
    "group": "billing",
    "records": [b"x"],
    "value": b"x",
    "frame": pa.table({"value": [b"x"]}),
    "schema": pa.schema([("id", pa.int64())]),
    "partition": 0,
    "partitions": [0],
    "start": 0,
    "offset": 0,
    "base_offset": 0,
    "before_offset": 0,
    "total": 2,
    "timestamp_ms": 0,
    "producer_id": 1,
    "config": {},
    "held": [0],
    "source": "logged",
    "target": "logged",
    "from_offset": 0,
    "request": JoinRequest("consumer", (("range", b""),)),
    "member": Identity("nobody", 1),
    "member_id": "nobody",
    "assignments": {},
    "offsets": [Committed("orders", 0, 0)],
}
"""What a required parameter of this name may be, in a call that asks for nothing odd."""

_OVER = frozenset({"close"})
"""Called last, by its own test."""

BUILT_ON = {"append_batch": "append", "scan_from": "scan", "describe": "lag"}
"""What a face does itself, and the method that a class has to have for it."""


@dataclass
class Target:
    """An object that users have, and how to call it."""

    make: Callable[[], Any]
    kind: type
    valid: dict[str, Any] = field(default_factory=dict)
    by_method: dict[str, dict[str, Any]] = field(default_factory=dict)

    def arguments(self, method: str, signature: inspect.Signature) -> dict[str, Any]:
        """What a plain call of a method takes; fails when a new parameter has no plain value."""
        known = VALID | self.valid | self.by_method.get(method, {})
        required = [
            name
            for name, each in signature.parameters.items()
            if each.default is each.empty
            and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        unknown = [name for name in required if name not in known]
        assert not unknown, f"{method}: say in VALID what {unknown} may be"
        given = {name: known[name] for name in required}
        return given | self.by_method.get(method, {})


def public_names(kind: type) -> list[str]:
    """The public methods and properties of a class, whoever defines them."""
    return [name for name in dir(kind) if not name.startswith("_") and name not in _OVER]


def answers(kind: type, name: str) -> bool:
    """Whether a class does something itself, and does not leave it to its face in `lamina.api`."""
    faces = [each for each in kind.__mro__ if each in (StoreApi, GroupApi)]
    own = kind.__mro__[: kind.__mro__.index(faces[0])] if faces else kind.__mro__
    return any(BUILT_ON.get(name, name) in vars(each) for each in own)


def signature_of(kind: type, name: str, face: type | None = None) -> inspect.Signature | None:
    """A method's parameters; those of `face`, where the class itself takes anything."""
    found = inspect.getattr_static(kind, name)
    if isinstance(found, property):
        return None
    method = getattr(kind, name)
    if not callable(method):
        return None
    signature = inspect.signature(method)
    open_ended = any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values())
    if open_ended and face is not None and hasattr(face, name):
        signature = inspect.signature(getattr(face, name))
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def odd_calls(target: Target, name: str, signature: inspect.Signature) -> Iterator[dict[str, Any]]:
    """Every call of a method in which one argument makes no sense."""
    plain = target.arguments(name, signature)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for value in ABSURD:
            yield plain | {parameter.name: value}


class Caller:
    """Makes calls in a thread, so that one that hangs is seen."""

    def __init__(self) -> None:
        self._asked: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (action := self._asked.get()) is not None:
            try:
                self._answers.put((_finish(action()), None))
            except BaseException as error:
                self._answers.put((None, error))

    def __call__(self, action: Callable[[], Any]) -> BaseException | None:
        """Runs an action to its end; returns what it raised."""
        self._asked.put(action)
        try:
            return self._answers.get(timeout=SOON_S)[1]
        except queue.Empty:
            self.__init__()  # type: ignore[misc]
            return TimeoutError(f"no end in {SOON_S} s")


def _finish(result: Any) -> Any:
    """Awaits and streams are part of the call that gave them."""
    if inspect.isawaitable(result):
        return asyncio.run(_awaited(result))
    if inspect.isgenerator(result) or isinstance(result, Iterator):
        return list(result)
    return result


async def _awaited(result: Any) -> Any:
    return await result


def untyped(error: BaseException | None) -> bool:
    """Whether a call ended as none should."""
    return error is not None and not isinstance(error, LaminaError)


def told(name: str, given: dict[str, Any], error: BaseException | None) -> str:
    """A call and its end, in a line."""
    words = ", ".join(f"{key}={_short(value)}" for key, value in given.items())
    return f"{name}({words}): {type(error).__name__}: {str(error)[:120]}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(error).__name__}>"
    return text if len(text) < 40 else f"{text[:37]}…"
