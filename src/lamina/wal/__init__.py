"""Many small topics behind one fsync: the sharded write-ahead log of document 002.

A `wal` topic has no log of its own. Its records go to the write-ahead log of a shard, together
with those of all other topics there, and are copied into segments per topic later:

    append ─▶ shard_log ─▶ shard (wal-<n>.log) ─▶ compactor ─▶ segments ─▶ cold directory ─▶ gone
                                                     └─▶ snapshots ─▶ WAL files are freed

Appending. `engine` owns the shards, each with a writer of `lamina.log.commit`. `shard_log` is what
that writer drives: it assigns every record its sequence, makes the copies that `routers` ask for
(`routed`), and encodes a whole group in one kernel call. `shard` has the files.

Materialising. `compactor` copies new frames of each topic into its active segment, syncs them, and
writes a CheckpointMark; `snapshots` keep the content of control frames, so that WAL files can go.
`upkeep` seals, evicts (`eviction`) and moves segments to the cold directory (`relocation`).

Reading. `reader` streams one topic over archive, sealed segments, active segment and WAL, in this
order. `topic` is the state that it reads by: where each record lies (its layers), floors, deletes;
`expiry` hides what is too old; `topics_view` does the same for readers in other processes.

Imports run this way: `topic` ◀─ `archived`, `expiry`, `routed` ◀─ `reader`, `shard_log` ◀─
`wal_partition` ◀─ `routers`, `compactor` ◀─ `engine`. What a shard asks of a partition is
`shard_log.Target`.

Opening. `replay` walks the WAL files; `routed` and `idempotence` decide what a crash left of groups
that count as a whole or not at all; `metadata` gathers the content of control frames and snapshots;
then `topic_recovery` puts each topic together from its segments and the WAL. The result is a value
(`topic.Contents`) that the constructor of a partition takes: there is no half-open partition.

Shared by these: `ground` (files, clock and directories), `wal_partition` (one partition as the
store sees it), `archived` (what the archive holds of a topic), `cold_recall` (where the cold
directory was), `ownership` (which store a cold directory belongs to), `held` (what the WAL holds
of one topic after a crash), `evidence` (torn or rotted, in the WAL and at the end of a segment),
`unread_pages` (segments that the device delivers in part).

Rules.
1. The WAL is the truth until a checkpoint records that segments hold a record durably.
2. A change of a topic (delete, floor, router) is a durable control frame first, then memory, then
   files. Replaying a frame twice, or in another order across shards, changes nothing.
3. A record and its routed copies are in one group: after a crash all of them are there, or none.
4. One topic's failure is its own: a deletion that fails does not stop the shard.
5. Topic ids are never used twice.

Where to look.
- what an append costs: `shard_log` and `lamina.log.commit`
- where a record lies, and how it is found: `TopicLayout.source_for` in `topic`, then `segments`
- when a segment is full or too old: `compactor` and `upkeep`
- when a WAL file is removed: `shard` and `snapshots`
- whether damage in the WAL is a torn write or rot: `evidence`
- which records a delete means: `deletes`; what a cap or an age lets go: `lamina.log.retention`, and
  how far that moves a topic's floor: `eviction`
- erasing and mending sealed segments: `segment_rewrite`, `segment_mend`
"""
