"""The kinds of log that Spark can plan over, behind one interface (`lamina.spark.plan`).

    open_log        from options to one of the following
    directory_log   a directory: no broker and no lock, files are opened where they are read
    wal_topics      the topics behind a write-ahead log in such a directory
    archived_log    an archive alone: objects read by the executors, by ranges of blocks
    served_log      a running server: cold objects from the object store, the rest by Flight
    local           what planning over a directory, or committing to one, stands on

A log says which partitions there are, which offsets each has, and how a range of offsets is cut
into pieces of bytes. Pieces travel to the executors with everything they need; no executor asks
the driver or a broker again.

Rules.
1. Planning reads indexes and lists, never records.
2. A piece names exact offsets, so that reading it twice, or on another machine, gives the same
   rows.
3. A range that is missing is planned as a gap with its recorded reason; `lamina.spark.gaps`
   decides whether the query may go on.
4. What was archived is found also if the archive is not named: the directory remembers it.
"""
