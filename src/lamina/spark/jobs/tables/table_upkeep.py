"""Files of a table that are written again: small ones joined, old ones carried over.

Rules.
1. Files are joined within their group, so that a file never has rows of two days.
2. The driver decides what is joined, from names and sizes; executors read and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lamina.errors import InvalidRequest
from lamina.spark.jobs.tables.carried_rows import Carrying
from lamina.spark.jobs.tables.grouped_files import rows_of_files, write_grouped
from lamina.spark.jobs.tables.table_contract import TableFile, TableState
from lamina.storage.files import LocalFiles

FILE_BYTES = 128 << 20
SMALL_FILES = 8
KEEP_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Upkeep:
    """When files are joined and snapshots expire."""

    file_bytes: int = FILE_BYTES
    """About how large joined files may become; a file of less than half of it is small."""
    small_files: int = SMALL_FILES
    """So many small files of a day are joined; 0 for never."""
    keep_ms: int | None = KEEP_MS
    """How long snapshots are kept; None for ever."""

    def __post_init__(self) -> None:
        if self.file_bytes < 1 or self.small_files < 0 or self.small_files == 1:
            raise InvalidRequest(
                "files are joined to at least one byte, from two small ones on (0 for never)"
            )


def small_files(
    files: Sequence[TableFile], upkeep: Upkeep, state: TableState
) -> list[list[TableFile]]:
    """Returns which files to join, those of one new file together; a bucket is one file already."""
    if state.latest or not upkeep.small_files:
        return []
    small = [file for file in files if file.size_bytes < upkeep.file_bytes / 2]
    counts: dict[str, int] = {}
    for file in small:
        counts[file.group] = counts.get(file.group, 0) + 1
    chosen = [file for file in small if counts[file.group] >= upkeep.small_files]
    return [task for task in packed(chosen, upkeep.file_bytes) if len(task) > 1]


def packed(files: Iterable[TableFile], file_bytes: int) -> list[list[TableFile]]:
    """Deals files to tasks: each of one group, and of about so many bytes at most."""
    tasks: list[list[TableFile]] = []
    size_bytes = 0
    for file in sorted(files, key=lambda each: each.name):
        fits = size_bytes + file.size_bytes <= file_bytes
        if tasks and fits and tasks[-1][0].group == file.group:
            tasks[-1].append(file)
            size_bytes += file.size_bytes
        else:
            tasks.append([file])
            size_bytes = file.size_bytes
    return tasks


def written_again(
    source: str,
    target: str,
    schema: pa.Schema,
    carrying: Carrying | None,
    files: Sequence[TableFile],
) -> list[TableFile]:
    """Writes the rows of some files of one group as one file; runs on an executor."""
    group = files[0].group

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in rows_of_files(source, files, schema):
            yield batch if carrying is None else carrying.carried(batch)

    return write_grouped(LocalFiles(), target, rows(), lambda batch: [(group, batch)])
