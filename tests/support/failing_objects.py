"""An object store that fails at a chosen call, before the call does anything or after it did.

What may happen to a call: it is refused (nothing done), or its answer is lost (all done). What may
not: half an object; stores put objects whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from lamina.errors import ArchiveUnavailable
from lamina.storage.objects import ObjectInfo, Objects, Stored

if TYPE_CHECKING:
    from typing_extensions import Buffer

When = Literal["before", "after"]
CHANGING = ("create", "replace", "delete")


class FailingObjects:
    """Passes calls on; counts them; the chosen ones raise."""

    def __init__(self, inner: Objects) -> None:
        self.inner = inner
        self.url = inner.url
        self.calls: list[tuple[str, str]] = []
        self.fail_at: int | None = None
        self.forever = False
        self.when: When = "before"
        self.error: Callable[[], BaseException] = lambda: ArchiveUnavailable("the test says so")
        self.spoil: Callable[[str, bytes], bytes] | None = None
        """Changes what reading gives: the store lies."""

    def _call(self, kind: str, key: str, action: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append((kind, key))
        fails = self.fail_at is not None and (
            number >= self.fail_at if self.forever else number == self.fail_at
        )
        if fails and self.when == "before":
            raise self.error()
        answer = action()
        if fails:
            raise self.error()
        return answer

    def _read(self, kind: str, key: str, action: Callable[[], Any]) -> bytes:
        data = bytes(self._call(kind, key, action))
        return self.spoil(key, data) if self.spoil is not None else data

    def read(self, key: str) -> Stored:
        etag = ""

        def action() -> bytes:
            nonlocal etag
            found = self.inner.read(key)
            etag = found.etag
            return found.data

        return Stored(self._read("read", key, action), etag)

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        return self._read("read_range", key, lambda: self.inner.read_range(key, start, end))

    def size(self, key: str) -> int:
        return self._call("size", key, lambda: self.inner.size(key))

    def create(self, key: str, data: Buffer) -> None:
        self._call("create", key, lambda: self.inner.create(key, data))

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        return self._call("replace", key, lambda: self.inner.replace(key, data, etag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from self._call("list", prefix, lambda: [*self.inner.list(prefix)])

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))
