"""Looks into the journal of committed offsets (`groups/offsets.log`): one row per entry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats import committed_offsets
from lamina.formats.committed_offsets import Piece
from lamina.inspect.findings import Finding, Row, described

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PROBLEM = "bytes that are no entry; a consumer may go on from an older committed offset"


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
                yield Finding(path, piece.position, _PROBLEM, resumes_at)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on; what is none as a finding."""
        for number, piece in enumerate(_pieces(path, data)):
            if number < first:
                continue
            if isinstance(piece, Finding):
                yield piece.as_row()
            elif piece.entry is None:
                yield Finding(path, piece.position, _PROBLEM).as_row()
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
