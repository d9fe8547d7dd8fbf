"""Looks into any file of Lamina's: which kind it is, what it holds, what is wrong with it.

The commands `dump`, `verify` and `doctor`, the jobs `verify` and `repair`, and the search behind
`erase` all ask here, so that they agree about what a file is and what counts as damage.

    a path ─▶ kinds ─▶ logs · object_files · documents · journals ─▶ rows and findings

`kinds` recognises a file by its content first and its name second. Each of the others reads one
family of files: `logs` the frames of frame, keratin and wal logs, `object_files` the blocks of
STRM objects, `documents` the small files that are decoded at once, `journal_files` the journals of
idempotent producers and of committed offsets, `transaction_files` what a transaction holds. All
yield rows (`render` makes them plain text or JSON) and `findings`.

`segment_check` looks at more than one file: it walks a segment's log once and holds both indexes
against it. What no single file shows (a segment that is missing in the middle, two that overlap,
files of another store) is found by `lamina.store.directory_check`.

Rules.
1. Nothing here changes a file, takes a lock, or needs a store to be open.
2. What is found carries where it is: path, byte position, and offset where there is one.
3. A finding is a value. Whether it ends a command with an error is decided by the caller.
4. Beside a live writer a record that is being written is not damage: callers look again.

Where to look.
- how a file is recognised: `kinds`
- what `verify` calls damage: `logs`, `object_files`, `segment_check`
"""
