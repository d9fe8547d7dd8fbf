"""What a store can be asked and what it answers: signatures, contracts and values, once.

    store_api        every public method of a store, of whatever kind
    group_api        the same for a consumer group
    answers          topics, partitions, segments, gaps, groups, layers, writers: frozen values
    acks             what an append asks for and is answered: levels, stamps, acks
    held_records     records that a consumer holds, and how a call names them
    bounded_scan     a stream of batches that ends after so many records or bytes
    writer_counts    what a writer has done, in buckets
    recovery_report  what recovery did when a store was opened

Everything is imported from here: `from lamina.api import StoreApi, Gap`.

Four kinds of store are subclasses of `StoreApi`: embedded, read-only, archive and served. Each
overrides what it can do; for the rest, `StoreApi` itself raises InvalidRequest with a sentence
about that kind. The server's table of operations and the client's methods are made from the same
signatures. Values are made by an embedded store, sent by a server, made again by a client, printed
by commands and drawn by the console; none of these needs an engine for them.

A new method of a store begins here: its signature and its contract. Then the kinds that can do it
implement it, and one row in `lamina.wire.operations` serves it.

Rules.
1. Only errors, config, records, received and arguments are imported here: a client that loads this
   package loads no kernel and no storage engine.
2. A value belongs here if a public call takes or returns it; what only the engine's parts say to
   each other stays with them.
3. What a kind of store cannot do raises a typed error that names the kind and the way out: never
   NotImplementedError, and never an attribute that is not there.
"""

from __future__ import annotations

from lamina.api.acks import (
    ACKS,
    DURABLE,
    NOT_WAITED,
    OF_TOPIC,
    UNTIL_ARCHIVED,
    WRITTEN,
    Ack,
    Appended,
    ProducerId,
    ProducerStamp,
    acks_level,
    stamp,
)
from lamina.api.answers import (
    REASONS,
    Block,
    BrokerId,
    Decision,
    Diff,
    Gap,
    GroupInfo,
    Isolation,
    Layer,
    Move,
    PartitionInfo,
    PartitionLag,
    RawRecord,
    RouterInfo,
    SegmentFacts,
    SinkFacts,
    Skipped,
    Start,
    State,
    TierStatus,
    TopicInfo,
    Window,
    WriterFacts,
    window,
)
from lamina.api.bounded_scan import BATCH_BYTES, BATCH_RECORDS, bounded
from lamina.api.group_api import GroupApi
from lamina.api.held_records import (
    LEASE_MS_MAX,
    MORE_FIELDS,
    OFFSETS_MAX,
    POLL_BYTES,
    POLL_RECORDS_MAX,
    Held,
    as_offsets,
    level_of,
    numbers_of,
)
from lamina.api.recovery_report import Event, Kind, RecoveryReport
from lamina.api.store_api import StoreApi
from lamina.api.writer_counts import Pulse, bucket_of, least_of, percentile

__all__ = [
    "ACKS",
    "BATCH_BYTES",
    "BATCH_RECORDS",
    "DURABLE",
    "LEASE_MS_MAX",
    "MORE_FIELDS",
    "NOT_WAITED",
    "OFFSETS_MAX",
    "OF_TOPIC",
    "POLL_BYTES",
    "POLL_RECORDS_MAX",
    "REASONS",
    "UNTIL_ARCHIVED",
    "WRITTEN",
    "Ack",
    "Appended",
    "Block",
    "BrokerId",
    "Decision",
    "Diff",
    "Event",
    "Gap",
    "GroupApi",
    "GroupInfo",
    "Held",
    "Isolation",
    "Kind",
    "Layer",
    "Move",
    "PartitionInfo",
    "PartitionLag",
    "ProducerId",
    "ProducerStamp",
    "Pulse",
    "RawRecord",
    "RecoveryReport",
    "RouterInfo",
    "SegmentFacts",
    "SinkFacts",
    "Skipped",
    "Start",
    "State",
    "StoreApi",
    "TierStatus",
    "TopicInfo",
    "Window",
    "WriterFacts",
    "acks_level",
    "as_offsets",
    "bounded",
    "bucket_of",
    "least_of",
    "level_of",
    "numbers_of",
    "percentile",
    "stamp",
    "window",
]
