"""Writing exactly once: tasks stage, the driver commits, and whoever has the store open appends.

    task    staging: rows become one durable file below `sink/`, nothing is visible yet

    driver  transaction: one commit file decides; then staged rows are appended, and marked stored
    target  sink_target: an embedded directory, or a running server
    bridge  handover: from the process that commits for Spark to the one that has the store open
    letters buried_rows: the dead letters of a query that reads, stored in the same way

A transaction is known by (application, number): for a stream the query and the batch, for a batch
write what the user calls it. Appends carry the stamp of a producer made from that name, so that
storing the same transaction again, after any crash, appends nothing twice.

Rules.
1. Nothing is appended before the commit file is durable; after that it is stored, whatever dies.
2. A number that was stored is never stored again, and one that was decided can always be finished,
   however late.
3. Abort never touches what a commit may have published: Spark calls it after a commit that raised.
4. Staged files are checked in full before they are appended; they come from other machines.

`transaction` has the whole argument, step by step, beside the code that follows it.
"""
