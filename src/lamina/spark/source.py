"""`spark.read.format("lamina")`: a log as a DataFrame, read by the executors without a broker.

Planning happens once for each `load()`: a DataFrame is a snapshot. Filters are not pushed down
(Spark would cache the pushed plan and give wrong rows); options and a schema prune instead.

Rule: readers and writers are imported by whoever asks for one. Spark looks for sources, and asks
them for their schema, in processes of their own, which must not load a storage engine for that;
only a schema that a topic keeps has to be looked up.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from lamina.spark.columns import schema_of
from lamina.spark.options import SOURCE_OPTIONS, Given, SinkOptions, SourceOptions, Typing


class LaminaSource(DataSource):
    """The data source that Spark knows as `lamina`."""

    @classmethod
    def name(cls) -> str:
        """Returns what `format(…)` is given."""
        return "lamina"

    def schema(self) -> StructType:
        """Returns the columns that the options ask for."""
        given = Given(self.options, SOURCE_OPTIONS)
        if Typing.parse(given) is None:
            return schema_of(given)
        from lamina.spark.batch import source_schema

        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Makes the reader of a batch query."""
        from lamina.spark.batch import BatchReader

        return BatchReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Makes the reader of a streaming query."""
        from lamina.spark.logs.open_log import open_log
        from lamina.spark.stream import StreamReader

        options = SourceOptions.parse(self.options, streaming=True)
        return StreamReader(options, schema, open_log(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Makes the writer of a batch query."""
        from lamina.spark.sink import BatchWriter

        return BatchWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Makes the writer of a streaming query."""
        from lamina.spark.sink import StreamWriter

        return StreamWriter(SinkOptions.parse(self.options, streaming=True), schema, overwrite)
