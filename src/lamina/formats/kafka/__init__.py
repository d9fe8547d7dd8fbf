"""Record batches as Kafka clients send and read them: magic 2, the only kind since Kafka 4.

    a client's bytes ─compression─▶ records ─batch─▶ Arrow columns ─▶ (any format of ours)
    Arrow columns ─batch─▶ bytes with a checksum ─▶ a client

None of this is on disk: what a Kafka client produces is stored in the topic's own format, so that
every other door can read it, and what it fetches is encoded from Arrow on request.

    batch            the header, what is checked of it, columns from batches and back
    record_kernels   the two inner loops
    faults           what can be wrong with a batch, by what the client should do about it
    compression      gzip, snappy (raw and xerial), lz4 and zstd, with a bound on what comes out

Rules.
1. What arrives is hostile. Counts and lengths are compared with the bytes that are there before
   they allocate anything, the checksum is verified before anything is decoded, and decompression
   stops at a bound.
2. A batch is refused with a `BadBatch` that names the kind of fault and, if it is in a record, its
   number: a client needs both to know whether to try again.
3. Nothing is dropped: keys, values, headers, nulls, timestamps and their order arrive unchanged.
4. Batches are written uncompressed, with the offsets of the log. Offsets may have holes; a hole at
   the beginning or the end is sent as an empty batch that spans it.
"""
