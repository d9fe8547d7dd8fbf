"""What can be wrong with a batch that a client sends, by what the client should do about it."""

from __future__ import annotations

from enum import Enum

from lamina.errors import InvalidRequest


class Fault(Enum):
    """Why a batch is refused."""

    CORRUPT = "corrupt"
    """The bytes changed on their way: sending them again may help."""
    INVALID = "invalid"
    """The batch breaks a rule of the format: sending it again does not help."""
    TOO_LARGE = "too large"
    CODEC = "codec"
    """A codec that nobody knows."""


class BadBatch(InvalidRequest):
    """A record batch that cannot be taken. `record` is the index of the one at fault, if any is."""

    def __init__(self, fault: Fault, problem: str, record: int | None = None) -> None:
        super().__init__(problem if record is None else f"record {record}: {problem}")
        self.fault = fault
        self.record = record
