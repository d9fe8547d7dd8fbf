"""The `frame` format: the log of documents 000 and 004, simple enough for a hex editor.

    <base>.log       frames, one record each, little-endian, CRC-32        (`log`)
    <base>.idx       offset to position, one entry per index interval      (`index`)
    <base>.timeidx   time to offset, likewise                              (`time_index`)

The `.log` is the truth; both indexes are derived from it and are rebuilt when they are missing,
short, or disagree. A frame carries its offset, its time, a key and a value; it begins with a magic
number and ends with its own length, so that a log can be walked backwards from its end.

Rules.
1. An empty key and no key have the same bytes, and both read back as no key.
2. A frame keeps key, value and time. Headers, tags and null values are refused by name: they are
   never dropped.
3. A log begins with its first frame; there is no header whose damage could cost the file.
4. Frames of one log have consecutive offsets. A frame with any other offset is left over or
   misplaced, and the walk stops before it.

`docs/formats/frame.md` has the byte tables with an annotated dump; `tests/golden/frame-log.bin`
has bytes that any other implementation must be able to read.
"""
