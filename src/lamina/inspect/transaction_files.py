"""Looks into files of which all is used or nothing: transactions, and windows of a cluster's log.

transactions/<number>.commit and .staged
tail/<seq>.tail, in the object store
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats import tail_file, transaction_file
from lamina.inspect.findings import Finding, Row, described
from lamina.storage import paths

if TYPE_CHECKING:
    from typing_extensions import Buffer


class TransactionEntries:
    """What a transaction holds; see `lamina.formats.transaction_file`.

    One that is not decided ends anywhere, and is dropped when the store is opened.
    """

    name = "transaction"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields what is wrong: all of a file is used, or nothing."""
        try:
            for _ in transaction_file.walk(data, is_decided=_is_decided(path)):
                pass
        except CorruptData as error:
            yield Finding(path, error.position, described(error))

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on, and what ends them if they do not end well."""
        try:
            found = transaction_file.walk(data, is_decided=_is_decided(path))
            for number, (position, end, entry) in enumerate(found):
                if number < first:
                    continue
                about: Row = {"entry": number, "position": position, "size": end - position}
                shown = entry._asdict() | {"kind": entry.kind.name.lower()}
                shown["body"] = f"{len(entry.body)} bytes"
                yield about | {"checksum": "ok"} | shown
        except CorruptData as error:
            yield Finding(path, error.position, described(error)).as_row()


def _is_decided(path: str) -> bool:
    known = paths.transaction_file(paths.base_name(path))
    return known is None or known.suffix == paths.DECIDED


class TailSections:
    """What a window of a cluster's log holds; see `lamina.formats.tail_file`."""

    name = "tail"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields what is wrong: all of a window is used, or nothing."""
        try:
            found = tail_file.decode(data)
        except CorruptData as error:
            yield Finding(path, error.position, described(error))
            return
        if paths.tail_seq(f"{paths.TAILS}/{paths.base_name(path)}") not in (None, found.seq):
            yield Finding(path, 0, f"the tail is of slot {found.seq}, its name says another")

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the sections from a number on, or what is wrong with the whole."""
        try:
            tail = tail_file.decode(data)
        except CorruptData as error:
            yield Finding(path, error.position, described(error)).as_row()
            return
        for number, each in enumerate(tail.sections):
            if number >= first:
                row: Row = {"section": number, "seq": tail.seq, "epoch": tail.epoch}
                row |= {"kind": each.kind.name.lower(), "name": each.name}
                row |= {"partition": each.partition, "first_offset": each.first_offset}
                row |= {"next_offset": each.next_offset, "body": f"{len(each.body)} bytes"}
                yield row | {"checksum": "ok"}
