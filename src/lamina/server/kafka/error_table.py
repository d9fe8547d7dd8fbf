"""Which of Kafka's numbers stands for which of our errors.

A client acts on the number alone. It tries again for what may pass (7, 56, 2), refreshes what it
knows of the cluster (3, 6), starts elsewhere (1), and gives up on the rest.

A coordinator that cannot answer now says 16, at which every client looks for it again. None
expects 7 or 56 there: a member of aiokafka ends for good when its heartbeat gets one.
"""

from __future__ import annotations

from lamina.errors import (
    ArchiveUnavailable,
    Busy,
    Closed,
    CorruptData,
    DuplicateSequence,
    Fenced,
    InvalidRequest,
    LaminaError,
    NotAllowed,
    NotPrimary,
    OffsetOutOfRange,
    OutOfSequence,
    QueueFull,
    StorageFull,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
    UnsupportedField,
)
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.wire.kafka import group_apis, share_apis
from lamina.wire.kafka.error_codes import ErrorCode

_CODES: tuple[tuple[type[LaminaError], ErrorCode], ...] = (
    (UnsupportedField, ErrorCode.INVALID_RECORD),
    (UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (UnknownGroup, ErrorCode.GROUP_ID_NOT_FOUND),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (DuplicateSequence, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    (OutOfSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (NotAllowed, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
    (StorageFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (ArchiveUnavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (NotPrimary, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (Busy, ErrorCode.REQUEST_TIMED_OUT),
    (QueueFull, ErrorCode.REQUEST_TIMED_OUT),
    (Unavailable, ErrorCode.REQUEST_TIMED_OUT),
    (Fenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (Closed, ErrorCode.KAFKA_STORAGE_ERROR),
    (CorruptData, ErrorCode.CORRUPT_MESSAGE),
)
"""Every family of our errors, the special ones in front."""

_FAULTS = {
    Fault.CORRUPT: ErrorCode.CORRUPT_MESSAGE,
    Fault.INVALID: ErrorCode.INVALID_RECORD,
    Fault.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    Fault.CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
}


_COORDINATED = frozenset(
    api.name
    for api in (
        group_apis.JOIN_GROUP,
        group_apis.SYNC_GROUP,
        group_apis.HEARTBEAT,
        group_apis.LEAVE_GROUP,
        group_apis.OFFSET_COMMIT,
        group_apis.OFFSET_FETCH,
        share_apis.SHARE_GROUP_HEARTBEAT,
    )
)
"""What only a coordinator answers. Transactions have a table of their own (`transacting`)."""
_MAY_PASS = (Unavailable, Closed)


def code_for(api: str, error: LaminaError) -> ErrorCode:
    """Returns Kafka's number for an error of a request, whose API decides where two would do."""
    if api in _COORDINATED and isinstance(error, _MAY_PASS):
        return ErrorCode.NOT_COORDINATOR
    return code_of(error)


def code_of(error: LaminaError) -> ErrorCode:
    """Returns Kafka's number for an error."""
    if isinstance(error, BadBatch):
        return _FAULTS[error.fault]
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
