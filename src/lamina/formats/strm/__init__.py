"""The `strm` format of document 001: compressed segments for an object store.

    header ─ blocks ─ block index ─ footer

A block is some thousand records as varints, compressed by LZ4 or zstd, with a checksum of its own;
the index at the end names each block's offsets, times and position. So a reader fetches the index
by one range request, and then only the blocks that it needs.

    layout        header, footer, index entries, and the limits of all of them
    write         from Arrow columns to an object
    segment       an object's index, and which blocks a range of offsets needs
    block         one block: checked, decompressed, decoded
    block_group   neighbouring blocks decoded by one kernel call
    record_codec  the records of a block, as varints and as columns
    salvage       what is left of an object whose index or blocks are damaged

Rules.
1. What an index or a block claims is bounded before memory is allocated for it.
2. A damaged block costs its own records. A damaged index is made again from the blocks.
3. Columns that STRM has no field for travel in the record envelope, and read back as they were.
4. An object may have holes, which its index names; every hole has its reason in the topic's
   ledger.

`docs/formats/strm.md` has the byte tables and dumps; `tests/golden/strm-*.seg` the bytes.
"""
