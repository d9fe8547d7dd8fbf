"""Opens files to look into; the kinds that need kernels are imported when a file first needs them.

So a JSON document is shown at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamina.inspect import documents
from lamina.inspect.findings import FileKind, salvage_file

if TYPE_CHECKING:
    from lamina.storage.bad_pages import Salvaged


def opened(path: str) -> tuple[FileKind | None, Salvaged]:
    """Reads a file and returns it with its kind; raises InvalidRequest if it cannot be opened."""
    found = salvage_file(path)
    kind = documents.recognise(path)
    if kind is None:
        from lamina.inspect import kinds

        kind = kinds.kind_of(path, found.data)
    return kind, found
