"""The `wal` format of document 002: frames of many topics in one log, and what is made of them.

    wal-<n>.log      frames: records, control frames, barriers            (`log`, `control`)
    CURRENT          which of the files is the active one                 (`current`)
    seg-<first>.data the same frames, of one topic only                   (`log`)
    seg-<first>.idx  a fixed-size entry per sequence                      (`index`)
    snapshot-<n>.bin what control frames have said so far                 (`snapshot`)

`layout` has the header that all frames share, `headers` and `located` walk them: the first by
headers alone, the second gathering the records of chosen topics. `places` finds where each topic's
frames lie in a file. `cursor` reads the fields of control frames one after the other, `routing`
has the frames of routers, `sharding` says which shard a topic belongs to.

Rules.
1. A frame is whole if its XXH3 checksum fits; header and body are covered, so that neither a
   length nor a topic can be wrong unnoticed.
2. A `.data` may have holes: sequences that were deleted are simply not there. A WAL file has none.
3. Control frames can be applied twice and in any order across files without harm.
4. A record that has routed copies carries a flag, and a RoutedMark ends its group: after a crash
   the group counts as a whole or not at all.

`docs/formats/wal.md` has the byte tables and dumps; `tests/golden/wal-*.bin` the bytes.
"""
