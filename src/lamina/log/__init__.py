"""One partition of a segmented topic. Read this package first: everything else builds on it.

A partition is a pile of layers (`layers`), each a run of offsets that lies in one place. The last
one grows, the others never change again:

    append ─▶ commit ─▶ active segment ──roll──▶ sealed ──archive──▶ cold ──retention──▶ gone

Appending. `appending` checks what a caller hands in and turns it into a `Request` (`requests`).
`commit` is the group commit: a thread that finds no leader becomes it, takes every waiting request,
has `encoder` assign offsets and encode them, writes once, syncs once, and answers all of them;
while it syncs, the next group is written already (`flights`). Requests of tasks have no thread
that could lead: one of a pool does (`pool_leaders`).
`partition` owns the tail that the leader drives: it writes to the `active_segment`, rolls to the
next one, and removes what retention or a trim lets go.

Reading. `partition_reader` streams over the segments that `segment_pile` lists at one moment, and
over the archive where nothing local holds a record. A segment reads itself in windows (`segment`),
finds its place by two sparse indexes (`segment_index`; `sealed_segment` rebuilds them), and never
looks beyond the bound that its reader may see. What no layer holds is a gap: it is reported with
its reason, and callers that want to go on behind it walk over gaps (`gap_walk`).

Opening. `segment_files` decides which files are segments and `settling` carries that out;
`quick_check` looks at the end of each sealed segment; `recovery` walks the tail, cuts what is
torn, sets aside what is damaged, and rebuilds what is derived. Everything it did is in the store's
`recovery_report`. `partition_view` gives readers in other processes the same picture without
touching a file.

Shared by these: `data_directory` (files, root and clock), `directory` (the same for one partition,
with its ledger), `manifest_file`, `damage` (what a reader gets instead of a damaged record),
`sound_copies` (what replaces such records when a segment is mended), `cold` (the archive as a
reader sees it), `spares` (copies of small files), `time_search`, `batch_offsets`,
`document_names` (`append_batch` and `scan_from`), and `router_rule`.

Rules.
1. Acknowledged means durable: `commit` answers `acks=all` after the fsync, never before.
2. Only the leader changes the tail, the segments and the ledger of a partition.
3. Only `recovery` and `removal` cut records, and both keep the bytes aside first.
4. Nothing below the durable watermark is ever cut. Damage there costs the damaged records alone.
5. The `.log` is the truth. Indexes and the manifest are derived, and rebuilt when they disagree.
6. A failed write or fsync poisons the writer until the store is reopened (`commit`).

Where to look.
- how long a group waits for more requests: `commit`, rule 2
- what counts as torn and what as damage: `recovery`, and `stops` for the words
- which records a reader may see: the bounds in `segment_pile`
- where records lie, in which tier: `layers`
- why a layer stays or goes: `retention`; how it is removed: `removal`
- what a retried batch of an idempotent producer gets: `producers`
- when a segment is full or too old: `Partition._write_piece` and `Partition.is_old` in `partition`
- how a reader that waits at the end is woken: `wait_beyond` and `announce` in `partition_reader`
- what a page that cannot be read becomes: `damage`
- what the other packages see of a partition: `interfaces` and `sealed`
"""
