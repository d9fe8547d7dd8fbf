"""The store: a data directory as a whole, which is opened, asked, and closed.

Here parts meet that know nothing of each other: segmented partitions (`lamina.log`), topics behind
the write-ahead log (`lamina.wal`), consumer groups (`lamina.groups`), and the archive.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · groups · trim ─▶ close

Four kinds of store answer the same questions (`lamina.api`):

    `store`           a directory open for writing, one process at a time
    `read_only`       the same directory, read beside a live writer or with none
    `archive_store`   an object store alone: no broker, no directory
    `lamina.client`   a store that another process serves

Every kind of store is composed of `parts`; `store` makes them in order, and has the table of which
part answers which call. `lookup` finds topics and partitions for all of them. `open_topics` holds
those of a store that writes, `write_ahead` the log of its wal topics. `appends` decides which
partitions take which records, `reads` answers what every kind of store can be asked, `topics`
creates, alters and deletes, `group_calls` answers for groups of both kinds, `router_rules` connects
wal topics, and `keeping` trims and deletes records. `maintenance` is what a store does without
being asked: flush, roll, retention, checkpoint. `opening` opens a directory, new or not: identity,
checkpoint, and the recovery of each partition. `catalog` keeps topics in their `topic.json`, and
`disk_reserve` keeps room for deletions on a full disk. `producer_ids` numbers the idempotent
producers of Kafka's clients. `warming` compiles every kernel before anybody waits for one.

`diff` is the read of a follower that names gaps instead of stopping at them. `introspection`
answers the console and the metrics, and `picture` draws the layers of a partition. `rewrite` and
`mend` replace sealed segments for `erase` and `repair`; `restore` and `restore_wal` bring archived
topics back. `directory_check` finds files that do not belong together, and `orphans` finds objects
that belong to nothing.

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
- what creates a topic, and what a deletion that fails leaves: `catalog` and `topics`
"""
