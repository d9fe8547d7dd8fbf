"""What a store does by itself between requests: flush, roll, retain, checkpoint. One thread.

`tick` is the whole of it and can be called at any time; the thread only calls it again and again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from lamina.errors import LaminaError
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.log.partition import Partition
from lamina.store.disk_reserve import Reserve
from lamina.store.opening import Boot

_log = logging.getLogger(__name__)


class Chore(Protocol):
    """Looks after another part of the store; with `force`, also what is not due yet."""

    def __call__(self, *, force: bool) -> None:
        """Does what is due; with `force`, everything."""


class Maintenance:
    """Looks after the partitions of a store."""

    def __init__(
        self,
        boot: Boot,
        reserve: Reserve,
        partitions: Callable[[], list[Partition]],
        chores: Mapping[str, Chore],
    ) -> None:
        self._boot = boot
        self._reserve = reserve
        self._chores = chores
        self._partitions = partitions
        self._checkpointed: dict[tuple[str, int], tuple[int, int]] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, known: Mapping[tuple[str, int], PartitionCheckpoint]) -> None:
        """Does what must be done before the store is open to others.

        The checkpoint shows other processes what is durable: it is written now if it differs from
        the one that is `known`. Positions that readers left are taken over first.
        """
        ends = {
            key: (each.active_segment_base_offset, each.log_end_offset)
            for key, each in known.items()
        }
        with self._lock:
            self._checkpointed = ends or None
            self.checkpoint(self._partitions())
            self._reserve_space()
            self._do("groups", force=False)

    def start(self, tick_ms: int) -> None:
        """Starts the thread."""
        name = "lamina-maintenance"
        self._thread = threading.Thread(target=self._run, args=(tick_ms,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits for a tick that is under way."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():  # or it was never begun
            self._thread.join()

    def _run(self, tick_ms: int) -> None:
        while not self._stop.wait(tick_ms / 1000):
            try:
                self.tick()
            except Exception:
                _log.exception("maintenance failed; it is tried again at the next tick")

    def tick(self, *, force: bool = False) -> None:
        """Flushes what was only written, rolls by age, applies retention, writes the checkpoint."""
        with self._lock:
            partitions = self._partitions()
            for partition in partitions:
                try:
                    self._look_after(partition)
                except LaminaError as error:
                    _log.warning("%s: %s", partition.place.name, error)
            self.checkpoint(partitions)
            for name in self._chores:
                self._do(name, force=force)

    def _do(self, name: str, *, force: bool) -> None:
        try:
            self._chores[name](force=force)
        except (OSError, LaminaError) as error:
            _log.warning("%s: %s", name, error)

    def _reserve_space(self) -> None:
        try:
            self._reserve.keep()
        except OSError as error:
            _log.warning("no space could be reserved for removing: %s", error)

    def _look_after(self, partition: Partition) -> None:
        if partition.writer.failure is not None:
            return
        tail = partition.active
        if tail.written.next_offset > tail.durable.next_offset:
            partition.writer.exclusively(partition.sync)
        if tail.index.unsaved:  # the next opening walks the log from the last entry on
            partition.writer.exclusively(tail.save_index)
        if partition.is_old():
            partition.writer.exclusively(partition.roll)
        if partition.has_idle_producers():
            partition.writer.exclusively(partition.forget_idle_producers)
        if partition.has_expired():
            self._reserve.use(lambda: partition.writer.exclusively(partition.apply_retention))

    def checkpoint(self, partitions: list[Partition]) -> None:
        """Writes the checkpoint if anything durable has changed since the last one."""
        now = {}
        for partition in partitions:
            tail = partition.layout.active
            place = partition.place
            now[place.topic, place.partition] = (tail.base_offset, tail.durable.next_offset)
        if now == self._checkpointed:
            return
        try:
            self._boot.write_checkpoint(partitions)
            self._reserve.keep()
        except OSError as error:
            _log.warning("the checkpoint could not be written: %s", error)
            return
        self._checkpointed = now
