"""A topic as a `pyarrow.dataset.Dataset`: what DuckDB, Polars, DataFusion and pandas query.

Engines call `scanner` with the columns and the filter that they push down (DataFusion asks for
fragments first, one per range here). The filter decides which ranges of offsets are read; the
scanner (`log_scanner`) applies filter and columns to each batch as it comes. A reader that stops
early, as a `limit` does, ends the scan.

Rules.
1. The ends are fixed when a scan is made, so that all partitions are read up to one moment.
2. Ranges are read one after the other, in the order of partitions and offsets.
3. A dataset owns the store that it opened, and none that it was given.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.dataset as pd
import pyarrow.fs as pfs

from lamina.api import StoreApi
from lamina.engines.bounds import Expression, Pruner
from lamina.engines.log_scanner import LogScanner
from lamina.engines.table_columns import (
    carried,
    numbered,
    schema_of,
    table_batch,
    typed_batch,
    with_microseconds,
)
from lamina.errors import LaminaError, RecordsMissing
from lamina.log.gap_walk import NO_LOSS, first_not_removed, scan_over

LOGGER = logging.getLogger("lamina.engines")


@dataclass(frozen=True, slots=True)
class Stripe:
    """Offsets `[first, end)` of one partition."""

    partition: int
    first: int
    end: int


class _NoFiles(pfs.FileSystemHandler):  # type: ignore[misc]
    """The file system of a dataset that has no files: every access raises an error that says so."""

    def get_type_name(self) -> str:
        """Names it."""
        return "lamina"

    def normalize_path(self, path: str) -> str:
        """Leaves a path as it is."""
        return path

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError(
            "Arrow reads datasets of files by itself, and a topic is none: use to_table, to_batches"
            " or scanner of this dataset, and their result in its place"
        )

    get_file_info = get_file_info_selector = open_input_file = open_input_stream = _refuse
    open_output_stream = open_append_stream = create_dir = delete_dir = delete_file = _refuse
    delete_dir_contents = delete_root_dir_contents = copy_file = move = _refuse


_FORMAT = pd.IpcFileFormat()


class LogDataset(pd.FileSystemDataset):  # type: ignore[misc]
    """One topic of a store, with a filter that every scan of it has, or none.

    Operations of Arrow in C++ (`sort_by`, `join`, a union) follow a pointer that a class in Python
    does not have, which would crash the process. So this class has one, to a file that cannot be
    opened. A scanner cannot have one: give `pyarrow.dataset.write_dataset` batches instead.
    """

    def __init__(
        self,
        store: StoreApi,
        topic: str,
        *,
        filter: Expression | None = None,
        fail_on_data_loss: bool = True,
        errors: str = "raise",
        owned: bool = False,
        like: LogDataset | None = None,
    ) -> None:
        self._store = store
        self._topic = topic
        self._filter = filter
        self._fail_on_data_loss = fail_on_data_loss
        self._owned = owned
        self.failure: LaminaError | None = None
        """The error of the last scan that failed; engines pass on its text at best."""
        format_name, _ = store.format_of(topic)
        self._errors = errors
        self._version: int | None = _newest_version(store, topic) if like is None else like._version
        """Whose columns the table has: another version may name them otherwise. None: untyped."""
        self._schema = (
            schema_of(format_name)
            if self._version is None
            else with_microseconds(store.read(topic, errors=errors, version=self._version).schema)
        )
        nowhere = pfs.PyFileSystem(_NoFiles())
        file = _FORMAT.make_fragment("topic", filesystem=nowhere)
        super().__init__([file], self._schema, _FORMAT, nowhere)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    @property
    def partition_expression(self) -> Expression | None:
        """What holds for every row: the filter that the dataset was given."""
        return self._filter

    def __repr__(self) -> str:
        kept = "" if self._filter is None else f", filter {self._filter}"
        return f"LogDataset({self._topic!r} of {self._store!r}{kept})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a LogDataset holds an open store; make one in each process")

    # ------------------------------------------------------------------ what is read

    def stripes(self, filter: Expression | None = None) -> list[Stripe]:
        """Returns the ranges that a scan with a filter would read, without reading any record."""
        wanted = self._both(filter)
        pruner = Pruner(self._schema, wanted)
        _, partitions = self._store.format_of(self._topic)
        return [each for number in range(partitions) for each in self._left_of(pruner, number)]

    def _left_of(self, pruner: Pruner, partition: int) -> list[Stripe]:
        """Returns what a filter leaves of a partition: of its range, the layers that may match."""
        bounds = pruner.bounds(partition)
        if bounds is None:
            return []
        extent = self._earliest(partition), self._store.latest_offset(self._topic, partition)
        layers = self._store.segments(self._topic, partition) if pruner.is_about_time else []
        ranges = pruner.ranges(partition, bounds.within(extent), layers)
        if ranges and bounds.is_searched_in(ranges[0], layers):
            found = self._store.offset_for_time(self._topic, partition, bounds.first_ms)
            first = extent[1] if found is None else found
            ranges = [(max(start, first), end) for start, end in ranges if first < end]
        return [Stripe(partition, *each) for each in ranges]

    def _earliest(self, partition: int) -> int:
        """Returns where the table begins: at a loss, if no record before it is left."""
        earliest = self._store.earliest_offset(self._topic, partition)
        return first_not_removed(self._store.gaps(self._topic, partition), earliest)

    def _both(self, filter: Expression | None) -> Expression | None:
        if self._filter is None or filter is None:
            return filter if self._filter is None else self._filter
        return self._filter & filter

    def _rows(
        self, stripes: Sequence[Stripe], needed: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for stripe in stripes:
                yield from self._read(stripe, needed)
        except LaminaError as error:
            self.failure = error
            raise

    def _read(self, stripe: Stripe, needed: list[str] | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a range, over the gaps that are no loss."""

        def scan(first: int) -> Iterator[pa.RecordBatch]:
            where = (self._topic, stripe.partition, first)
            if self._version is None:
                return iter(self._store.scan(*where, end=stripe.end))
            found = self._store.read(
                *where,
                end=stripe.end,
                columns=carried(needed),
                errors=self._errors,
                version=self._version,
            )
            return (numbered(batch) for batch in found)

        for step in scan_over(scan, stripe.first, stripe.end):
            if not isinstance(step, RecordsMissing):
                yield (
                    typed_batch(step, self._schema)
                    if self._version is not None
                    else table_batch(step, stripe.partition, self._schema)
                )
            elif step.reason not in NO_LOSS:
                self._miss(step)

    def _miss(self, gap: RecordsMissing) -> None:
        if self._fail_on_data_loss:
            raise gap
        LOGGER.warning("%d offsets are left out: %s", gap.end - gap.first, gap)

    # ------------------------------------------------------------------ what engines call

    def scanner(
        self,
        columns: Any = None,
        filter: Expression | None = None,
        **options: Any,
    ) -> LogScanner:
        """Returns one scan of the topic as it is now. Options that are for files are ignored."""
        return self._scanner_of(self.stripes(filter), columns, self._both(filter))

    def candidates(
        self, columns: list[str] | None, filter: Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields all rows of the ranges that a filter leaves, for engines that do the rest."""
        return self._scanner_of(self.stripes(filter), columns, self._filter).to_batches()

    def _scanner_of(
        self, stripes: Sequence[Stripe], columns: Any, filter: Expression | None
    ) -> LogScanner:
        return LogScanner(self._schema, lambda needed: self._rows(stripes, needed), columns, filter)

    def get_fragments(self, filter: Expression | None = None) -> Iterator[LogFragment]:
        """Yields each range that a filter leaves, for engines that read them in parallel."""
        for stripe in self.stripes(filter):
            yield LogFragment(self, stripe, filter)

    def filter(self, expression: Expression) -> LogDataset:
        """Returns the same topic with a filter that holds for every scan."""
        return LogDataset(
            self._store,
            self._topic,
            filter=self._both(expression),
            fail_on_data_loss=self._fail_on_data_loss,
            errors=self._errors,
            like=self,
        )

    def replace_schema(self, schema: pa.Schema) -> LogDataset:
        """Raises TypeError: the columns of a topic are fixed."""
        raise TypeError("a topic's columns cannot be replaced; select and cast them in a query")

    # ------------------------------------------------------------------ its life

    def close(self) -> None:
        """Closes the store if the dataset has opened it."""
        if self._owned:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _newest_version(store: StoreApi, topic: str) -> int | None:
    versions = store.schemas(topic)
    return versions[-1].version if versions else None


class LogFragment(pd.Fragment):  # type: ignore[misc]
    """One range of a partition that is read."""

    def __init__(self, dataset: LogDataset, stripe: Stripe, filter: Expression | None) -> None:
        self._dataset = dataset
        self._stripe = stripe
        self._filter = filter

    @property
    def physical_schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> Expression | None:
        """The filter that chose it; every row still has to pass it."""
        return self._filter

    def __repr__(self) -> str:
        return f"LogFragment({self._stripe})"

    def scanner(
        self,
        schema: pa.Schema | None = None,
        columns: Any = None,
        filter: Expression | None = None,
        **options: Any,
    ) -> LogScanner:
        """Returns one scan of this range."""
        dataset = self._dataset
        return dataset._scanner_of([self._stripe], columns, dataset._both(filter))

    def to_batches(
        self,
        schema: pa.Schema | None = None,
        columns: Any = None,
        filter: Expression | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of this range."""
        return self.scanner(schema, columns, filter).to_batches()
