"""How a store ends: every step is taken, whatever happens to those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lamina.errors import Closed, Poisoned
from lamina.log.partition import Partition


def take_all(steps: Iterable[Callable[[], None]]) -> None:
    """Takes every step even if some fail; then raises an error, an interrupt before others."""
    failure: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            if failure is None or isinstance(failure, Exception):
                failure = error
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None  # a frame that holds its own exception is a reference cycle


def end_appends(partition: Partition) -> None:
    """Takes no more appends; returns when those that were accepted are answered."""
    partition.writer.close(Closed("the store is closed"))


def end_durably(partition: Partition) -> None:
    """The same; what was answered when it was written is durable then, too."""
    end_appends(partition)
    if not partition.is_poisoned:
        partition.sync()


def close_partition(partition: Partition) -> None:
    """Answers accepted requests and makes them durable; recovery does the rest after a failure."""
    end_appends(partition)
    if partition.is_poisoned:
        return
    try:
        partition.close()
    except OSError as error:
        raise Poisoned(
            f"{partition.place.name}: closing failed ({error}); the next open recovers"
        ) from error
