"""Typed tables of a topic in a lake: what `lamina pipeline table` makes and keeps up.

    table_job         one run: what is new, read as columns, written by executors, one commit
    table_contract    what a run asks of a kind of table, and what a table says of itself
    lake_columns      a topic's columns as tables have them
    column_changes    what a new version of the schema does to a table's columns
    carried_rows      old rows under a new version of the schema
    grouped_files     new files, each of one day or of one bucket of keys
    latest_rows       the last row of each key
    table_upkeep      small files joined, old snapshots expired
    iceberg_rows, delta_rows, parquet_rows   the kinds of table

    plan (driver) ─▶ typed rows ─▶ files by day (executors) ───────────────▶ one commit (driver)
                          latest: ─▶ changes by bucket ─▶ buckets merged ─▶ one commit (driver)

A table holds what `store.read` returns under one version of the topic's schema: `_offset`,
`_partition`, `_timestamp`, `_key`, and the columns of the schema. A table of the latest rows has
one row per key; a null value removes it.

Rules.
1. How far each partition has come, and by which version, is in the commit that has the rows.
2. Files that no commit names are not part of the table.
3. A table's rows are all of one version: old rows are carried over in the commit that brings the
   version: by the numbers of columns where there are some (Iceberg), else written again.
4. One run at a time per table, by the lock of `lakes.table_lock`.
"""
