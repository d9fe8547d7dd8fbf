"""What one Spark task reads, and reading it: the same for batches and for streams."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from lamina.api import TopicSchema
from lamina.spark import gaps
from lamina.spark.columns import Projection
from lamina.spark.options import SourceOptions
from lamina.spark.plan import Piece, Wanted
from lamina.spark.typed_projection import TypedProjection


class Task(InputPartition):
    """What one Spark task reads; nothing, if the whole query reads nothing."""

    def __init__(self, pieces: list[Piece], versions: tuple[TopicSchema, ...] = ()) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.versions = versions
        """Of a typed topic's schema, as they were when the task was planned."""

    def __repr__(self) -> str:
        return f"Task({len(self.pieces)} pieces, {sum(p.size_bytes for p in self.pieces)} bytes)"


def read_task(
    partition: InputPartition, projection: Projection | TypedProjection, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one task as Arrow batches, in the order of the log."""
    assert isinstance(partition, Task)
    if isinstance(projection, TypedProjection):
        projection = projection.over(partition.versions)
    wanted = Wanted(projection.of_records, projection.keys, options.fail_on_data_loss)
    for piece in partition.pieces:
        gaps.reading(piece.part.name)
        for origin, batch in piece.read(wanted):
            rows = projection.apply(batch, origin)
            if rows.num_rows:
                yield rows
