"""A topic as a table for Arrow's engines: DuckDB, Polars, DataFusion, pandas.

    lamina.dataset("data", "orders")     a `pyarrow.dataset.Dataset`, which all of them can query
    lamina.polars.scan("data", "orders") the same as a lazy frame of Polars
    lamina sql "select …"                the same on the command line, by DuckDB

An engine asks a dataset for a scan, with the columns and the filter that it can push down. First
`bounds` finds out what the filter can be true for: which partitions, which offsets, from which time
on. Only that range is read, by the same calls that any user of a store makes. Then Arrow applies
the filter to what was read, so pruning never decides which rows are in the answer.

    filter ─▶ bounds: partitions, offsets, times ─▶ store.segments, offset_for_time, scan ─▶ rows

`open_table` opens the store that a caller names, `table_columns` defines the columns, `bounds` asks
Arrow what a filter allows, `dataset` is what engines query, `log_scanner` is one scan of it, and
`polars_frames` has what only Polars needs.

Rules.
1. Pruning never decides about a row. Arrow's own simplification of the filter proves that nothing
   beyond a bound can match; whatever is in doubt is read, and then filtered.
2. A scan is a snapshot: its ends are fixed when it is made.
3. Any kind of store will do: a directory, an archive, a server. Nothing here knows where records
   are stored.
4. A record that cannot be read is an error with its reason, never a missing row; records that were
   removed on purpose are no loss.
5. Engines are optional: nothing here imports one, apart from the module that is named after it.

Where to look.
- why a query reads more than it should: `bounds.Pruner`
- which columns a topic has: `table_columns.schema_of`
"""
