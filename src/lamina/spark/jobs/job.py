"""What every job takes and gives: a place to report progress, and a summary to print.

Rules of a job.
1. It is a function of a Spark session, its own options, `dry_run` and a `Progress`.
2. The driver commits once, atomically, at its end; killed before that, it has changed nothing that
   a reader sees, and may be run again.
3. A dry run plans everything and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Progress(Protocol):
    """Where a job says how far it is."""

    def expect(self, count: int, unit: str) -> None:
        """Reports how much there is to do: 12 `segments`, 4096 `bytes`."""

    def advance(self, count: int) -> None:
        """Reports that so much more of it is done."""


class Silent:
    """Progress that nobody watches."""

    def expect(self, count: int, unit: str) -> None:
        """Takes it and says nothing."""

    def advance(self, count: int) -> None:
        """Takes it and says nothing."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job did, or would do: a table for people, and its sums."""

    job: str
    dry_run: bool
    rows: Sequence[Mapping[str, Any]]
    totals: Mapping[str, Any] = field(default_factory=dict)
    has_failed: bool = False
    """Whether the command ends with exit code 1: findings, or bytes that should be gone."""
    advice: str = ""
    """What to do about a failure, for people."""
