"""Looks into journals: one row per entry of idempotent producers, or of committed offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats import committed_offsets, producer_journal
from lamina.formats.committed_offsets import Piece
from lamina.inspect.findings import Finding, Row, described

if TYPE_CHECKING:
    from typing_extensions import Buffer

_UNSOUND = "the entry is cut or its checksum is wrong; a retry of its batch may be stored twice"
_NO_ENTRY = "bytes that are no entry; a consumer may go on from an older committed offset"


class ProducersJournal:
    """The journal `producers.log`; see `lamina.formats.producer_journal`."""

    name = "journal of producers"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every unsound entry; each costs only itself."""
        resumes_at: int | None = None
        findings: list[Finding] = []
        for position, entry in reversed(list(producer_journal.walk(data))):
            if entry is None:
                findings.append(Finding(path, position, _UNSOUND, resumes_at))
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
                yield Finding(path, position, _UNSOUND).as_row()
            else:
                yield {"entry": number, "position": position, "size": size, "checksum": "ok"} | (
                    asdict(entry)
                )


class OffsetsJournal:
    """The journal of committed offsets; see `lamina.formats.committed_offsets`."""

    name = "journal of committed offsets"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every stretch that holds no entry; it costs only itself."""
        try:
            committed_offsets.decode_header(data)
        except CorruptData as error:
            yield Finding(path, error.position, described(error))
        pieces = _pieces(path, data)
        for piece, following in zip_longest(pieces, pieces[1:]):
            if isinstance(piece, Finding):
                yield piece
            elif piece.entry is None:
                resumes_at = following.position if isinstance(following, Piece) else None
                yield Finding(path, piece.position, _NO_ENTRY, resumes_at)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on; what is none as a finding."""
        for number, piece in enumerate(_pieces(path, data)):
            if number < first:
                continue
            if isinstance(piece, Finding):
                yield piece.as_row()
            elif piece.entry is None:
                yield Finding(path, piece.position, _NO_ENTRY).as_row()
            else:
                size = piece.end - piece.position
                about: Row = {"entry": number, "position": piece.position, "size": size}
                yield (
                    about
                    | {"checksum": "ok"}
                    | piece.entry._asdict()
                    | {"kind": piece.entry.kind.name.lower()}
                )


def _pieces(path: str, data: Buffer) -> list[Piece | Finding]:
    """Returns entries and damage in order; an entry of a newer version ends the list."""
    found: list[Piece | Finding] = []
    try:
        found.extend(committed_offsets.walk(data))
    except CorruptData as error:
        found.append(Finding(path, error.position, described(error)))
    return found
