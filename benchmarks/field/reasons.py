"""Why a bar is short where it is, and what would meet it: shown for bars that are short."""

from __future__ import annotations

_ARROW = (
    "a record of a log has a header and a checksum of its own, 36 bytes here, so that a third more"
    " goes to the disk than a plain file of 100-byte values takes; every record is encoded into the"
    " log's own bytes by the core that also writes them; groups are synced side by side only where"
    " producers wait for each other's. Met by: encoding on a second core"
)
_MANY = (
    "a request from asyncio costs about 20 µs of Python in its task and its leader, and a group"
    " two hand-overs between threads; redis-benchmark and the server of Redis are C, each on a core"
    " of its own. Met by: native code between the event loop and the log"
)
_SERVED = (
    "client and server are Python on the same two cores, and every byte passes gRPC, which copies"
    " it on both sides: plain Arrow over Flight takes 1.1 to 2 GB/s here (see the limits), which is"
    " 1,100 to 2,000 k/s before anything is stored or decoded. Met by: a core each, or shared"
    " memory on one machine"
)
REASONS = {
    "embedded_read_1024": (
        "every value is checked and copied out of the log once, at a sixth of what memory gives."
        " Met by: views of the log instead of copies"
    ),
    "first_ack_seconds": (
        "two thirds is the import of numpy, pyarrow and Numba, the rest our own modules and the"
        " machine code of a few kernels. Met by: a way for a lone record that needs no kernel"
    ),
    "opened_1M_sqlite": (
        "the first opening of a process after a kill loads the compiled kernels, which walk what"
        " lies above the last checkpoint; `import lamina` does not load them any more, so that the"
        " first durable record comes sooner. In a process that has them an opening takes 6 to 14 ms"
        " (`make bench-log`): 9 syncs where SQLite has one and 3 ms of Python"
        " (docs/decisions/0007-syncs-at-opening.md). Met by: a walk too short to need them"
    ),
    "opened_flat": (
        "what lies above the last checkpoint is walked and written once more: at most a segment, or"
        " a second's records, and by chance more of them after 10 M than after 1 M. The rest of the"
        " last segment is not read. Met by: noting how far a log is durable more often than once a"
        " second"
    ),
    "ahead_lone_p50_us": (
        "a call costs about 65 µs of Python beside its write and fdatasync, 25 µs where no sync"
        " leaves the processor's caches cold; SQLite's is C. Met by: native code"
    ),
    "arrow_produce_100": _ARROW,
    "arrow_produce_1024": _ARROW,
    "arrow_each_100": _ARROW,
    "arrow_each_1024": _ARROW,
    "redis_many": _MANY,
    "ahead_many": _MANY,
    "served_produce_100": _SERVED,
    "served_produce_1024": _SERVED,
    "served_read_100": _SERVED,
    "served_read_1024": _SERVED,
    "served_of_embedded_read_1024": _SERVED,
    "wal_produce_1024": (
        "every record is written twice, to the write-ahead log and to its segment, and at 1 KiB the"
        " compactor takes its half of what the disk gives while producers wait for theirs. Met by:"
        " segments that share the log's blocks, where the file system can"
    ),
}
