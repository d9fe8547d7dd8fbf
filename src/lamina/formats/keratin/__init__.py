"""The `keratin` format: the default log, and the files of consumer groups (document 003).

    <base>.log     a header, then records with CRC-32C, big-endian            (`header`, `log`)
    <base>.idx     offset to position                                         (`index`)
    <base>.tidx    time to offset                                             (`time_index`)
    manifest.bin   the partition's segments, as of the last roll              (`manifest`)
    <group>.snap   the whole state of a group in one partition                (`snapshot`)
    <group>.delta  the changes since then, event by event                     (`delta`)

Records keep key, value, headers and time; null values and headers travel in the record envelope
(`lamina.formats.envelope`) and read back as they were. A record's offset is the base offset plus
its place in the log: there are no holes.

Rules.
1. Every file begins with the same 16-byte header (`header`): magic, version, kind, checksum. The
   checksum is verified before the version, so a flipped bit is damage and not a newer format.
2. `.log`, `.snap` and `.delta` are truth; `manifest.bin`, `.idx` and `.tidx` are derived.
3. Snapshot and delta overlap: replaying an old delta over a newer snapshot ends in the same state.
4. The checksum covers what follows it; it uses the processor's CRC-32C where there is one.

`docs/formats/keratin.md` has the byte tables and dumps; `tests/golden/keratin-*.bin` the bytes.
"""
