"""Looks into a partition's journal of idempotent producers: one row an entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from lamina.formats import producer_journal
from lamina.inspect.findings import Finding, Row

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PROBLEM = "the entry is cut or its checksum is wrong; a retry of its batch may be stored twice"


class ProducersJournal:
    """The journal `producers.log`; see `lamina.formats.producer_journal`."""

    name = "journal of producers"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every unsound entry; each costs only itself."""
        resumes_at: int | None = None
        findings: list[Finding] = []
        for position, entry in reversed(list(producer_journal.walk(data))):
            if entry is None:
                findings.append(Finding(path, position, _PROBLEM, resumes_at))
            else:
                resumes_at = position
        yield from reversed(findings)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on; unsound ones as findings."""
        size = producer_journal.ENTRY.size
        for number, (position, entry) in enumerate(producer_journal.walk(data)):
            if number < first:
                continue
            if entry is None:
                yield Finding(path, position, _PROBLEM).as_row()
            else:
                yield {"entry": number, "position": position, "size": size, "checksum": "ok"} | (
                    asdict(entry)
                )
