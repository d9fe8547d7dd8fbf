"""A topic as a table for Arrow's engines: DuckDB, Polars, DataFusion, pandas.

    lamina.dataset("data", "orders")     a `pyarrow.dataset.Dataset`, which all of them can query
    lamina.polars.scan("data", "orders") the same as a lazy frame of Polars
    lamina sql "select …"                the same on the command line, by DuckDB

An engine asks a dataset for a scan, with the columns and the filter that it could push down. What
the filter can be true for is found out first: which partitions, which offsets, from which time on
(`bounds`). Only that range is read from the store, through the same calls as anybody's; the filter
itself is then applied by Arrow to what was read, so that pruning can only ever leave out records
that no row of the answer needs.

    filter ─▶ bounds: partitions, offsets, times ─▶ store.segments, offset_for_time, scan ─▶ rows

`open_table` opens what a caller names, `table_columns` names the columns, `bounds` asks Arrow what
a filter allows, `dataset` is what engines hold, `log_scanner` one scan of it, `polars_frames` what
only Polars needs.

Rules.
1. Pruning never decides about a row. A bound is a proof, by Arrow's own simplification of the
   filter, that nothing beyond it can match; what is in doubt is read and filtered.
2. A scan is a snapshot: its ends are fixed when it is made.
3. Any kind of store will do: a directory, an archive, a server. Nothing here knows where records
   lie.
4. A record that cannot be read is an error with its reason, never a shorter table; what was erased
   on purpose is no loss.
5. Engines are optional: nothing here imports one, apart from the module that is named after it.

Where to look.
- why a query reads more than it should: `bounds.Pruner`
- which columns a topic has: `table_columns.schema_of`
"""
