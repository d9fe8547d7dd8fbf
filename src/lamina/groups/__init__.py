"""Consumer groups: which consumer has which record, journaled before it is delivered.

A group shares a topic among its consumers, record by record. It keeps its state per partition in
two files, as document 003 describes: a snapshot and a journal of events behind it.

    poll ──▶ choose ──▶ read ──▶ mark ─┐
    ack, release, extend, commit ──────┴▶ group commit ──▶ journal, fsync ──▶ answer

`group` has the calls that consumers make. `shared_partition` decides which records of one partition
go to which consumer; its changes pass through the same group commit as appends, so the acks of a
thousand consumers are one write and one fsync. `state` is the value that these changes make, with
`kernels` for the inner loops; `journal` keeps it on disk.

`registry` knows all groups of a store: it recovers them when the store is opened, creates, lists,
resets (`reset_targets`) and deletes them. `roster` remembers which groups there are apart from
their files, so that a group whose files are lost is reported. `positions` takes over what readers
without a store have left. `copying` makes the copies that the archive keeps, and `rebuilding`
gathers what is known of a group whose files are lost. `dead_letters` writes records that no
consumer can process to `<topic>.dlq`.

Classic groups, as Kafka has them, share a topic by partitions instead: `coordinator` knows all of
them. `membership` is their protocol as a state machine without I/O, over a `member_list`, and
`offset_journal` keeps what their members have committed, with `offset_copies` in the archive.

Kafka's share consumers are members, too, of the groups that share record by record:
`share_coordinator` knows them, by the protocol in `share_membership`. Each of them may only settle
what it holds: `lending` hands records out to them, a `holding` is what one of them has, and
`verdicts` carries out what its holder decides. `settings_book` keeps the settings of such groups,
by name.

Rules.
1. Live traffic and recovery change a state by `State.apply` and by nothing else.
2. Nothing is answered before it is as durable as the caller asked for.
3. A group is never ahead of its log: what the log lost is not acked, and only durable records are
   handed out.
4. A consumer that dies loses its leases only: its records are delivered again after the deadline.
5. The partition is read through `lamina.log.interfaces`: no format is known here.

Where to look.
- what an event does to a state: the table in `state`
- how many times a record is delivered: `group.poll` and `dead_letters`
- what a crash between two files leaves: `journal`, rules 2 to 5
- how lag is counted: `lag`
- when a rebalance begins and ends: the drawing in `membership`
"""
