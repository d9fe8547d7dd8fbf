"""Opens files to look into; the kinds that need kernels are imported when a file first needs them.

So a JSON document is shown at once. Kernels are compiled once per machine, which takes seconds:
people are told why nothing happens.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lamina.engine import documents
from lamina.engine.findings import FileKind, map_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

NOTICE = "lamina: compiling for this processor, once; this takes some seconds\n"


class Opener:
    """Opens files and tells their kinds, as long as its context lasts.

    A `quiet` one does not say when it compiles.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_listening = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def open(self, path: str) -> tuple[FileKind | None, Buffer]:
        """Maps a file and tells its kind; raises InvalidRequest when it cannot be opened."""
        data = map_file(path)
        kind = documents.recognise(path)
        if kind is None:
            from lamina.engine import filekinds

            self._listen()
            kind = filekinds.kind_of(path, data)
        return kind, data

    def _listen(self) -> None:
        if self._quiet or self._is_listening:
            return
        from lamina.cli.compiling import told

        self._stack.enter_context(told(NOTICE, sys.stderr))
        self._is_listening = True
