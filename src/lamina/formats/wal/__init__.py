"""The `wal` format of document 002: frames of many topics in one log, and files made from it.

    wal-<n>.log      frames: records, control frames, barriers            (`log`, `control`)
    CURRENT          which of the files is the active one                 (`current`)
    seg-<first>.data the same frames, of one topic only                   (`log`)
    seg-<first>.idx  a fixed-size entry per sequence                      (`index`)
    snapshot-<n>.bin what control frames have said so far                 (`snapshot`)

`layout` has the header that all frames share. `headers` reads many headers at once, and `located`
gathers records whose positions are known. `places` finds where each topic's frames lie in a file.
`cursor` reads the fields of control frames one by one, `routing` has the frames of routers, and
`sharding` maps topics to shards. `walks` lets `scan.runs` walk both kinds of file over damage, and
`search` finds the next frame after it.

Rules.
1. A frame is whole if its XXH3 checksum matches. It covers header and body, so that a wrong length
   or topic is noticed.
2. A `.data` may have holes: deleted sequences are simply not there. A WAL file has none.
3. Control frames can be applied twice, and in any order across files.
4. A record with routed copies carries a flag, and a RoutedMark ends its group: after a crash the
   group counts as a whole or not at all.

`docs/formats/wal.md` has the byte tables and dumps; `tests/golden/wal-*.bin` the bytes.
"""
