"""The `strm` format of document 001: compressed segments for an object store.

    header ─ blocks ─ block index ─ footer

A block is a few thousand records as varints, compressed by LZ4 or zstd, with its own checksum. The
index at the end has each block's offsets, times and position. So a reader fetches the index with
one range request, and then only the blocks that it needs.

    layout        header, footer and index entries, with their limits
    write         from Arrow columns to an object
    segment       the index of an object, and which blocks hold a range of offsets
    block         one block: checked, decompressed, decoded
    block_group   neighbouring blocks decoded by one kernel call
    record_codec  the records of a block, as varints and as columns
    salvage       what can be read of an object whose index or blocks are damaged

Rules.
1. What an index or a block claims is bounded before memory is allocated for it.
2. A damaged block costs only its own records. A damaged index is rebuilt from the blocks.
3. Columns that STRM has no field for travel in the record envelope, and read back as they were.
4. An object may have holes, which its index names; the topic's ledger has the reason of each.

`docs/formats/strm.md` has the byte tables and dumps; `tests/golden/strm-*.seg` the bytes.
"""
