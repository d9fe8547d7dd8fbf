"""The jobs of `lamina pipeline`: bulk work on topics, each one Spark job with one commit.

    archive, compact            sealed segments into objects, small objects into large ones
    verify, repair              every checksum where the bytes are; what can be mended is
    erase                       keys and tags leave every tier (`byte_search` shows that they have)
    export, ingest              to Parquet, Delta or Iceberg (`lakes`), and from files or tables
    table                       a typed table in a lake, kept up from run to run (`tables`)
    copy                        `convert` and `replay`: one topic into another, each record once
    profile                     sizes, lateness, hot keys (`profile_measures`, `profile_page`)

Bulk work does not pass through the JVM. `lane` hands tasks to Python workers by `mapInArrow`; a
task reads bytes, works on them with the kernels and answers with a small report. `bulk_lane` does
so for descriptors of segments and objects, packed by their bytes. Jobs that append go through the
sink (`sink_writes`), with an intent that is durable first (`intents`).

`held_store` gives a job the store that it changes, `whereabouts` says where its topics are,
`topic_rows` reads them, `object_rewrite` makes new objects out of old ones, `field_mapping` says
what becomes of fields that a target's format cannot keep, and `credentials` lets workers into the
archive.

Rules.
1. A job is a function of a session, its options, `dry_run` and a `Progress` (`job`).
2. The driver commits once, at the end. A job that was killed has changed nothing that a reader
   sees, and can be run again.
3. A dry run plans everything and changes nothing.
4. An answer of a task is small: a report, never records.
5. Whatever could not be read is counted in the summary, and ends the command with an error.
"""
