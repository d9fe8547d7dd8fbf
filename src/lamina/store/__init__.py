"""The store: a data directory as a whole, which is opened, used, and closed.

Here packages meet that know nothing of each other: segmented partitions (`lamina.log`), topics
behind the write-ahead log (`lamina.wal`), consumer groups (`lamina.groups`), and the archive.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · groups · trim ─▶ close

Five kinds of store answer the same questions (`lamina.api`):

    `store`           a directory open for writing, one process at a time
    `read_only`       the same directory, read beside a live writer or with none
    `archive_store`   an object store alone: no broker, no directory
    `replica`         an object store and the windows of its cluster: what a standby reads
    `lamina.client`   a store that another process serves

Every kind of store is composed of `parts`; `store` makes them in order, and has the table of which
part implements which call. `lookup` finds topics and partitions for all of them. `open_topics`
holds those of a store that writes, `write_ahead` the log of its wal topics. `appends` decides which
partitions take which records, `reads` implements the reads of every kind of store, `topics`
creates, alters and deletes, `group_calls` answers for groups of both kinds, `router_rules` connects
wal topics, and `keeping` trims and deletes records. `maintenance` is what a store does without
being asked: flush, roll, retention, checkpoint. `opening` opens a directory, new or not: identity,
checkpoint, and the recovery of each partition. `open_stores` knows what this process has open.
`catalog` keeps topics in their `topic.json`, and `disk_reserve` keeps room for deletions on a full
disk. `producer_ids` numbers the idempotent producers of Kafka's clients. `transactions` keeps those
of their producers aside until they end: `transaction_states` says what may come next,
`staged_transaction` holds what was sent, and `decided_files` and `decided_appends` store what was
committed, each record once. `warming` compiles every kernel before it is needed.
`typed_topics` reads and writes values as columns, by schemas that `schema_files` keeps and mends,
and `schema_registry` keeps them as Confluent's clients know them.
`closing` ends all of it, and `server_calls` is what servers and jobs ask beside the API.

A store that holds a cluster has a `seat`, which says whether it may answer. `window_contents` finds
what is durable here and in no window yet, `shipping` commits it, and `collecting` lets windows go
that nobody needs any more. `seat_directory` decides what becomes of a directory when its broker
takes over, `window_history` reads what windows say, and `mounting` makes a directory of it.
`no_transactions` refuses what no window carries. `cluster_life` takes a process's turns in
its cluster, and opens and closes the store by them. What a standby reads from meanwhile is a
`replica`: `following` reads windows one by one, `window_objects` makes archived objects of their
sections, and `replica_partition` shows lists and windows as one pile.

`introspection` answers the console and the metrics, and `picture` draws the layers of a partition.
`rewrite` and `mend` replace sealed segments for `erase` and `repair`; `restore` and `restore_wal`
bring archived topics back. `directory_check` finds files that do not belong together, and `orphans`
finds objects that belong to nothing.

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
- what a commit of a transaction is, and what a crash makes of it: `transactions`
- what survives the loss of this machine, and how it gets to the next one: `shipping`, `mounting`
- when a standby takes over, and how a holder lets go: `cluster_life`, `lamina.cluster.member`
- what creates a topic, and what a deletion that fails leaves: `catalog` and `topics`
"""
