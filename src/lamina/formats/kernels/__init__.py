"""What the inner loops of all formats share.

A kernel is a Python function over NumPy arrays that Numba compiles to machine code. It runs
without the GIL, is compiled once per machine, and is loaded from a cache on disk after that.

    declare          says what is a kernel, and loads Numba when the first of them is worth it
    compile          the one place that configures Numba, and the key of its cache
    compile_notice   notifies the user that the first use takes a few seconds
    call_size        how much a call is to interpret
    first_use        small calls are answered before a kernel is compiled
    interpret        a kernel as the Python that it is, for those calls
    binary           fixed byte layouts for Python code, unaligned loads and stores for kernels
    arrow            Arrow columns as the arrays that kernels take, and back
    varint           zigzag varints, for STRM blocks and Kafka's records
    plain_varint     varints without zigzag, for Protobuf; written backwards
    floats           integers and floats as the bits that lie in memory
    crc              CRC-32 and CRC-32C: carry-less multiplication or SSE4.2, else by tables
    xxh3             XXH3-64 with a seed
    lz4              the block format of LZ4, decoded with every length checked
    fnv              FNV-1a, by which files name topics, partitions and groups

Rules.
1. A kernel never raises, and never allocates what its input claims: it returns a code.
2. Bounds are checked before memory is accessed: an index comes from a file, and files lie.
3. An instruction that the processor lacks would kill the process: which ones to use is decided by
   the host's features before anything is compiled.
4. Numba keys its cache by one file; `compile` adds a digest of all of `lamina.formats`, because
   kernels inline helpers of other files.
"""
