"""Bytes to Arrow and back: every structure that Lamina writes to disk, without any I/O.

Each structure on disk has a module: its docstring has the byte table, and below it are one
`Struct`, one `encode`, one `decode`, and for logs one `scan`. `docs/formats/` has the same tables
with annotated dumps; tests compare both with the code.

    frame/     the simplest log: one frame per record, two sparse indexes
    keratin/   the default log: CRC-32C, headers, a manifest, the files of consumer groups
    wal/       the write-ahead log: frames of many topics, control frames, snapshots, `.data`
    strm/      compressed objects for an object store
    kafka/     record batches as Kafka clients send and read them; never written to disk
    typed/     values as columns: schemas, and Avro's bytes to Arrow and back
    documents/ the small JSON files: topics, ledgers, checkpoints, lists of archived objects
    kernels/   what the inner loops share: compilation, checksums, hashes, Arrow columns

`log_format` is the interface of a segmented format to the other packages, implemented once for
frame and once for keratin. `scan` is the vocabulary of walking a log: where sound records begin and
end, and why the walk stopped. `scan.runs` is the only walk that continues after damage; it walks
`offset_log` (frame, keratin), `wal.walks`, `keratin.delta`, `committed_offsets` and the blocks of
`strm.salvage`. `sparse_choice` decides which
records an index points to, and `sparse_index` looks them up. `ranges` is a set of offsets as merged
ranges, `envelope` carries fields for which a format has no room, `partitioning` maps keys to
partitions, `producer_journal` is the journal of idempotent producers, and `committed_offsets` is
the journal of offsets that classic groups commit, and of where transactional producers stand;
`transaction_file` is what one transaction holds, and `tail_file` one window of a cluster's log.

Rules.
1. No I/O, no clock, no logging, no randomness: a test forbids the imports.
2. `scan` never raises on bad bytes: it stops and returns why. `decode` is called only on what
   `scan` accepted.
3. The codec reports END, TORN or a kind of damage; what that means is recovery's decision.
4. No Python object per record: columns go in and out, one compiled kernel runs over them.
5. A length that a file claims is never trusted to allocate memory.
6. A newer version is refused, but only after its checksum has proved that it is not damage.

Where to look.
- a byte on disk: the table at the top of the format's module
- what "torn" means while walking: `scan.Stop`
- how a walk continues after damage: `scan.runs`, and `resync` of each log; what it may believe of a
  damaged record: `claims`
- adding a format: write its package, then one class in `log_format`
"""
