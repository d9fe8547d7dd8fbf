"""Tables that `export` writes: Parquet files by day, and the commit that makes them a table.

    parquet_files   the files, written by the executors, one per day (UTC) that a task meets
    parquet_table   plain Parquet with commits of our own
    delta_table     a Delta table, committed with the package `deltalake`
    iceberg_table   an Iceberg table, committed with the package `pyiceberg`
    table_lock      one export at a time per table

The executors write files and nothing else; the driver adds them to the table by one commit. Each
kind of table keeps how far the topic was exported inside of the same commit, so that rows and
offsets cannot disagree: a run that is repeated after a crash finds what the last commit says and
goes on.

Rules.
1. Files that no commit names are not part of the table, and are removed by the next run.
2. A table that belongs to another topic, or to an earlier topic of the same name, is refused.
3. No jar is needed: both table formats are committed from Python.
4. The columns are those of the DataFrame source, so that an exported table and a query agree.
5. Old files stay until the commit that replaces them is durable: a reader never finds a table half
   written.
"""
