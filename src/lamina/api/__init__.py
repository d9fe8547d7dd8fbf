"""What a store can be asked and what it answers: signatures, contracts and values, once.

    store_api        every public method of a store, of whatever kind
    keeping_api      the part of it that keeps and removes records
    typed_api        the part of it that knows what values are: schemas, typed reads
    membership_api   the part of it that members of classic groups ask
    group_api        the same for a consumer group
    answers          topics, partitions, segments, gaps, groups, layers, writers: frozen values
    acks             what an append asks for and is answered: levels, stamps, acks
    topic_schema     a version of a topic's schema
    held_records     records that a consumer holds, and how a call names them
    record_reads     what bounds a read, and what a diff returns
    writer_counts    what a writer has done, in buckets
    memberships      joining, syncing and committing as a member of a classic group
    recovery_report  what recovery did when a store was opened
    portraits        how stores, groups and values show themselves in terminals and notebooks
    drawn_lists      lists that draw themselves: layers, lags

Everything can be imported from here (`from lamina.api import StoreApi, Gap`); a module is loaded
when one of its names is asked for.

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
3. `answers`, `acks`, `memberships`, `writer_counts` and `recovery_report` load no Arrow: commands
   that look into a small file start in an instant.
4. What a kind of store cannot do raises a typed error that names the kind and the way out: never
   NotImplementedError, and never an attribute that is not there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamina.api.acks import (
        ACKS,
        DURABLE,
        NOT_WAITED,
        OF_TOPIC,
        UNTIL_ARCHIVED,
        WRITTEN,
        Ack,
        Acks,
        Appended,
        GroupAcks,
        ProducerId,
        ProducerStamp,
        acks_level,
        checked_acks,
        stamp,
    )
    from lamina.api.answers import (
        REASONS,
        Block,
        BrokerId,
        Decision,
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
        lag_portrait,
        window,
    )
    from lamina.api.drawn_lists import Lags, Layers
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
    from lamina.api.keeping_api import KeepingApi
    from lamina.api.membership_api import MembershipApi
    from lamina.api.memberships import (
        Assigned,
        Committed,
        Identity,
        Joined,
        Joiner,
        JoinRequest,
        MemberInfo,
        Membership,
        MembershipState,
        Refusal,
    )
    from lamina.api.portraits import (
        ROWS_MAX,
        Bar,
        Cell,
        Portrait,
        Shown,
        counted,
        printable,
        shown_size,
        store_title,
        table_portrait,
    )
    from lamina.api.record_reads import BATCH_BYTES, BATCH_RECORDS, BatchStream, Diff, bounded
    from lamina.api.recovery_report import Event, Kind, RecoveryReport
    from lamina.api.store_api import StoreApi
    from lamina.api.topic_schema import TopicSchema
    from lamina.api.typed_api import TypedApi
    from lamina.api.writer_counts import BOUNDS, Pulse, bucket_of, least_of, percentile

# fmt: off
__all__ = [
    "ACKS", "BATCH_BYTES", "BATCH_RECORDS", "BOUNDS", "DURABLE", "LEASE_MS_MAX", "MORE_FIELDS",
    "NOT_WAITED", "OFFSETS_MAX", "OF_TOPIC", "POLL_BYTES", "POLL_RECORDS_MAX", "REASONS",
    "ROWS_MAX", "UNTIL_ARCHIVED", "WRITTEN", "Ack", "Acks", "Appended", "Assigned", "Bar",
    "BatchStream", "Block", "BrokerId", "Cell", "Committed", "Decision", "Diff", "Event", "Gap",
    "GroupAcks", "GroupApi", "GroupInfo", "Held", "Identity", "Isolation", "JoinRequest", "Joined",
    "Joiner", "KeepingApi", "Kind", "Lags", "Layer", "Layers", "MemberInfo", "Membership",
    "MembershipApi", "MembershipState", "Move", "PartitionInfo", "PartitionLag", "Portrait",
    "ProducerId", "ProducerStamp", "Pulse", "RawRecord", "RecoveryReport", "Refusal", "RouterInfo",
    "SegmentFacts", "Shown", "SinkFacts", "Skipped", "Start", "State", "StoreApi", "TierStatus",
    "TopicInfo", "TopicSchema", "TypedApi", "Window", "WriterFacts", "acks_level", "as_offsets",
    "bounded", "bucket_of", "checked_acks", "counted", "lag_portrait", "least_of", "level_of",
    "numbers_of", "percentile", "printable", "shown_size", "stamp", "store_title",
    "table_portrait", "window",
]
_HOMES = {
    "acks":
        "ACKS DURABLE NOT_WAITED OF_TOPIC UNTIL_ARCHIVED WRITTEN Ack Acks Appended GroupAcks "
        "ProducerId ProducerStamp acks_level checked_acks stamp",
    "answers":
        "REASONS Block BrokerId Decision Gap GroupInfo Isolation Layer Move PartitionInfo "
        "PartitionLag RawRecord RouterInfo SegmentFacts SinkFacts Skipped Start State TierStatus "
        "TopicInfo Window WriterFacts lag_portrait window",
    "group_api": "GroupApi",
    "held_records":
        "LEASE_MS_MAX MORE_FIELDS OFFSETS_MAX POLL_BYTES POLL_RECORDS_MAX Held as_offsets "
        "level_of numbers_of",
    "keeping_api": "KeepingApi",
    "membership_api": "MembershipApi",
    "memberships":
        "Assigned Committed Identity JoinRequest Joined Joiner MemberInfo Membership "
        "MembershipState Refusal",
    "drawn_lists": "Lags Layers",
    "portraits":
        "ROWS_MAX Bar Cell Portrait Shown counted printable shown_size store_title table_portrait",
    "record_reads": "BATCH_BYTES BATCH_RECORDS BatchStream Diff bounded",
    "recovery_report": "Event Kind RecoveryReport",
    "store_api": "StoreApi",
    "topic_schema": "TopicSchema",
    "typed_api": "TypedApi",
    "writer_counts": "BOUNDS Pulse bucket_of least_of percentile",
}
# fmt: on
_HOME_OF = {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a name's module when it is first asked for: a few values need no Arrow."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
