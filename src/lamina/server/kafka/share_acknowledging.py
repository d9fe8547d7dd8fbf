"""ShareAcknowledge, and the acknowledgements that are part of ShareFetch.

    ranges with verdicts ─▶ rows of what the session holds ─▶ one change of the group ─▶ durable

Rules.
1. An acknowledgement that is answered without an error is durable.
2. The acknowledgements of a partition are settled all together or not at all: one record that the
   member does not hold (any more) makes all of them fail with INVALID_RECORD_STATE.
3. A range is never expanded into its offsets: what is held is searched for the range's records.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.config import TopicSettings
from lamina.errors import LaminaError
from lamina.groups.state import Numbers
from lamina.groups.verdicts import Verdict
from lamina.server.kafka.classic_groups import may_use
from lamina.server.kafka.cluster_metadata import LEADER_EPOCH
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.share_groups import MEMBER_ID_MAX
from lamina.server.kafka.share_sessions import CLOSES, OPENS, ShareSession, release
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

LOCK_MS = TopicSettings().lease_ms


def leader_of(call: Call) -> Message:
    """Returns who leads every partition."""
    return {"leader_id": call.node_id, "leader_epoch": LEADER_EPOCH}


@dataclass(frozen=True, slots=True)
class Acks:
    """A client's verdicts on ranges of offsets: one for a whole range, or one per offset."""

    firsts: Numbers
    lasts: Numbers
    counts: Numbers
    verdicts: NDArray[np.int8]

    def of_rows(self, lengths: Numbers) -> NDArray[np.int8]:
        """Returns the verdict of each row, given how many rows each range has."""
        starts = np.cumsum(self.counts) - self.counts
        before = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
        is_one = np.repeat(self.counts == 1, lengths)
        found: NDArray[np.int8] = self.verdicts[
            np.repeat(starts, lengths) + np.where(is_one, 0, within)
        ]
        return found


def parsed(batches: list[Message], *, renews: bool) -> Acks | None:
    """Parses the acknowledgements of a partition; None if they are invalid."""
    firsts = np.array([each["first_offset"] for each in batches], dtype=np.int64)
    lasts = np.array([each["last_offset"] for each in batches], dtype=np.int64)
    kinds = [each["acknowledge_types"] for each in batches]
    counts = np.array([len(each) for each in kinds], dtype=np.int64)
    verdicts = np.fromiter(itertools.chain.from_iterable(kinds), dtype=np.int8)
    highest = Verdict.RENEW if renews else Verdict.REJECT
    are_ranges = (firsts >= 0).all() and (lasts >= firsts).all()
    if not are_ranges or (firsts[1:] <= lasts[:-1]).any() or (counts == 0).any():
        return None
    if ((counts > 1) & (counts - 1 != lasts - firsts)).any():
        return None
    if len(verdicts) and not 0 <= int(verdicts.min()) <= int(verdicts.max()) <= highest:
        return None
    return Acks(firsts, lasts, counts, verdicts)


@dataclass(slots=True)
class Settled:
    """A partition of a request, and what became of its acknowledgements."""

    topic_id: bytes
    partition: int
    batches: list[Message]
    error: ErrorCode = ErrorCode.NONE
    said: str | None = None
    lock_ms: int = LOCK_MS


def acknowledged(call: Call) -> list[Settled]:
    """Returns the partitions of a request that have acknowledgements."""
    return [
        Settled(topic["topic_id"], each["partition_index"], each["acknowledgement_batches"])
        for topic in call.request["topics"]
        for each in topic["partitions"]
        if each["acknowledgement_batches"]
    ]


def settle_all(call: Call, session: ShareSession, parts: list[Settled]) -> None:
    """Settles what a request says, partition by partition; what is refused becomes an error."""
    with session.settling:
        for part in parts:
            try:
                _settle(call, session, part)
            except LaminaError as error:
                part.error, part.said = call.told(error)


def _settle(call: Call, session: ShareSession, part: Settled) -> None:
    renews = call.version >= 2 and bool(call.request["is_renew_ack"])
    acks = parsed(part.batches, renews=renews)
    if acks is None:
        part.error, part.said = ErrorCode.INVALID_REQUEST, "the acknowledged ranges are none"
        return
    topic = call.door.topic_ids.name_of(call.store, part.topic_id)
    if topic is None or not call.may("read", topic):
        part.error = ErrorCode.UNKNOWN_TOPIC_ID
        return
    place = topic, part.partition
    held = session.held(place)
    found = held.rows_of(acks.firsts, acks.lasts)
    if found is None:
        part.error = ErrorCode.INVALID_RECORD_STATE
        return
    rows, lengths = found
    verdicts = acks.of_rows(lengths)
    group = call.store.group(topic, session.group, start="none")
    part.lock_ms = group.settings.lease_ms
    chosen = held.only(rows)
    deadline_ms = group.settle(part.partition, chosen, verdicts)
    if deadline_ms is None:
        part.error = ErrorCode.INVALID_RECORD_STATE
        return
    is_renewed = verdicts == Verdict.RENEW
    session.settled(place, chosen.only(~is_renewed), chosen.only(is_renewed), deadline_ms)


def refused(call: Call) -> ErrorCode:
    """Returns why nothing of a request of a share consumer is done; NONE for one that may be."""
    group, member_id = call.request["group_id"], call.request["member_id"]
    if not may_use(call, group or ""):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    is_named = bool(group) and 0 < len(member_id or "") <= MEMBER_ID_MAX
    return ErrorCode.NONE if is_named else ErrorCode.INVALID_REQUEST


async def share_acknowledge(call: Call) -> Message:
    """Answers ShareAcknowledge."""
    code = refused(call)
    if code is not ErrorCode.NONE:
        return {"error_code": code}
    epoch = call.request["share_session_epoch"]
    if epoch == OPENS:
        return {"error_code": ErrorCode.INVALID_SHARE_SESSION_EPOCH}
    session = call.door.shares.find(call.request["group_id"], call.request["member_id"], epoch)
    if isinstance(session, ErrorCode):
        return {"error_code": session}
    parts = acknowledged(call)
    with at_work(call):
        await call.in_pool(settle_all, call, session, parts)
        if epoch == CLOSES:
            await call.in_pool(release, call.store, [session])
    topics: dict[bytes, list[Message]] = {}
    for part in parts:
        row = {"partition_index": part.partition, "current_leader": leader_of(call)}
        row |= {"error_code": part.error, "error_message": part.said}
        topics.setdefault(part.topic_id, []).append(row)
    return {
        "acquisition_lock_timeout_ms": min((part.lock_ms for part in parts), default=LOCK_MS),
        "responses": [{"topic_id": key, "partitions": rows} for key, rows in topics.items()],
    }
