"""Opens files to look into; the kinds that need kernels are imported when a file first needs them.

So a JSON document is shown at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamina.engine import documents
from lamina.engine.findings import FileKind, map_file

if TYPE_CHECKING:
    from typing_extensions import Buffer


def opened(path: str) -> tuple[FileKind | None, Buffer]:
    """Maps a file and tells its kind; raises InvalidRequest when it cannot be opened."""
    data = map_file(path)
    kind = documents.recognise(path)
    if kind is None:
        from lamina.engine import filekinds

        kind = filekinds.kind_of(path, data)
    return kind, data
