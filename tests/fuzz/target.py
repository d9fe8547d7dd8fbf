"""What is fuzzed: bytes go in, and only a typed error or a value that encodes back may come out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from lamina.errors import LaminaError


def as_it_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """One door for bytes. `check` raises for a broken promise and lets typed errors through."""

    name: str
    make_seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], object]
    seal: Callable[[bytes], bytes] = as_it_is
    is_text: bool = False

    @functools.cache  # noqa: B019  # targets live as long as the process
    def seeds(self) -> tuple[bytes, ...]:
        return tuple(self.make_seeds())

    def run(self, data: bytes) -> bool:
        """Judges one input: True if it was taken, False if refused by a typed error."""
        try:
            self.check(data)
        except LaminaError:
            return False
        return True
