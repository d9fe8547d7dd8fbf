"""The store: a data directory as one thing that is opened, asked, and closed.

Here the parts meet that know nothing of each other: segmented partitions (`lamina.log`), topics
behind the write-ahead log (`lamina.wal`), consumer groups (`lamina.groups`), and the archive.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · groups · trim ─▶ close

Four kinds of store answer the same questions (`lamina.api`):

    `store`           a directory open for writing, one process at a time
    `read_only`       the same directory, read beside a live writer or with none
    `archive_store`   an object store alone: no broker, no directory
    `lamina.client`   a store that another process serves

`opening` is the first boot and every later one: identity, checkpoint, and the recovery of each
partition. `catalog` keeps the topics in their `topic.json`. `appends` decides which partitions
take which records, `reads` is what every kind of store can be asked, `topics` creates, alters and
deletes, `router_rules` and `group_calls` pass on to the parts that know. `maintenance` is what a
store does by itself: flush, roll, retain, checkpoint. `disk_reserve` keeps room for deletions on a
full disk.

`diff` is the read of a follower that names gaps instead of stopping at them. `introspection` and
`layers` answer the console and the metrics. `rewrite` and `mend` replace sealed segments for
`erase` and `repair`; `restore` and `restore_wal` bring archived topics back, and `directory_check`
finds files that do not belong together, `orphans` finds objects that belong to nothing.

Rules.
1. One writer per directory, by a lock that ends with its process; any number of readers.
2. No storage logic here: records belong to partitions, topics to the catalog.
3. A topic exists, or is deleted, by its `topic.json`; everything else follows from that file.
4. The checkpoint is written from durable state only. It is a hint: what the log proves wins.
5. After a fork the child's copy of a store is closed.

Where to look.
- what happens when a store is opened: `opening`, then `store.Store`
- which partition a record goes to: `appends`
- what runs once a second: `maintenance`
"""
