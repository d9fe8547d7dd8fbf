"""Ids for Kafka's idempotent producers: each is assigned once, whatever is lost in between.

A producer with another's id would have its first batches taken for repeats, and silently dropped.
So a block of ids is reserved durably before the first of it is assigned, and if the file of
reservations is lost, ids continue above all that any partition still remembers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lamina.errors import CorruptData, NewerFormat, typed_errors
from lamina.formats.documents import producer_ids
from lamina.formats.documents.producer_ids import Reserved
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths

BLOCK = 1_000


class ProducerIds:
    """Assigns ids. `remembered` returns the highest id that a partition knows, or -1."""

    def __init__(self, boot: DataDirectory, remembered: Callable[[], int]) -> None:
        self._boot = boot
        self._path = boot.path(paths.PRODUCER_IDS)
        self._remembered = remembered
        self._taking = threading.Lock()
        self._next = self._reserved = -1

    @typed_errors("reserving producer ids")
    def take(self) -> int:
        """Returns an id that no producer has, or had as far as any partition remembers."""
        with self._taking:
            if self._next < 0:
                self._next = self._reserved = max(self._kept(), self._remembered() + 1)
            if self._next >= self._reserved:
                reserved = Reserved(self._next + BLOCK)
                self._boot.files.replace(self._path, producer_ids.encode(reserved))
                self._reserved = reserved.next_id
            taken = self._next
            self._next += 1
            return taken

    def _kept(self) -> int:
        try:
            data = self._boot.files.read(self._path)
        except FileNotFoundError:
            return 0
        try:
            return producer_ids.decode(data).next_id
        except NewerFormat as error:
            raise error.at_path(self._path) from error
        except CorruptData:  # it is about to be replaced: somebody may want what it was
            self._boot.place("", 0).set_aside(self._path, data, 0)
            return 0
