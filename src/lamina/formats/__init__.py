"""Bytes to Arrow and back: every structure that Lamina writes, and nothing that touches a disk.

One module per structure on disk: its docstring has the byte table, beside it are one `Struct`, one
`encode`, one `decode`, and for logs one `scan`. `docs/formats/` has the same tables with annotated
dumps, and a test holds both to the code.

    frame/     the simplest log: one frame per record, two sparse indexes
    keratin/   the default log: CRC-32C, headers, a manifest, the files of consumer groups
    wal/       the write-ahead log: frames of many topics, control frames, snapshots, `.data`
    strm/      compressed objects for an object store
    documents/ the small JSON files: topics, ledgers, checkpoints, lists of archived objects
    kernels/   what the inner loops share: compilation, checksums, hashes, Arrow columns

`log_format` is what the rest of the house asks of a segmented format, one small interface with one
implementation each for frame and keratin. `scan` is the vocabulary of walking a log: where sound
records begin and end, and why the walk stopped. `sparse_choice` decides which records an index
points at, `sparse_index` looks them up. `ranges` is a set of offsets as merged ranges, `envelope`
carries fields for which a format has no room, `partitioning` maps keys to partitions, and
`producer_journal` is the journal of idempotent producers.

Rules.
1. No I/O, no clock, no logging, no randomness: a test forbids the imports.
2. `scan` never raises on bad bytes: it stops and returns why. `decode` is called only on what
   `scan` accepted.
3. The codec reports END, TORN or a kind of damage; what that means is recovery's decision.
4. No Python object per record: columns go in and out, one compiled kernel runs over them.
5. A length that a file claims never decides how much memory is allocated.
6. A version that is newer than ours is refused, after its checksum has shown that it is no damage.

Where to look.
- a byte on disk: the table at the top of the format's module
- what "torn" means while walking: `scan.Stop`
- adding a format: write its package, then one class in `log_format`
"""
