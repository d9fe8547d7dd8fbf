"""Looks into the files of transactions (`transactions/<number>.commit` and `.staged`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lamina.errors import CorruptData
from lamina.formats import transaction_file
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
