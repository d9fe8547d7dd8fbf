"""Transactions for Kafka clients: messages in front of the store's own (`store.transactions`).

Rules.
1. Keys treat a transactional id like a topic: it takes the scope `write`, and must begin with the
   key's prefix. The same is checked for each topic and group in a transaction.
2. A fenced producer gets the code that the version of its request knows: PRODUCER_FENCED, or
   INVALID_PRODUCER_EPOCH in versions before that existed.
3. A failure that may pass is returned as COORDINATOR_NOT_AVAILABLE, which every client retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lamina.api.memberships import Committed, Identity
from lamina.errors import InvalidRequest, LaminaError
from lamina.server.kafka import group_offsets
from lamina.server.kafka.classic_groups import may_use, refusal_of
from lamina.server.kafka.sessions import Call, at_work
from lamina.store.transaction_states import Claim, TransactionRefusal, TransactionRefused
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

_FENCED_FROM = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""The first version that knows PRODUCER_FENCED; other requests never do."""


def code_of(call: Call, error: LaminaError) -> int:
    """Returns the error code with which a transactional producer is refused."""
    told, _ = call.told(error)
    if isinstance(error, TransactionRefused):
        if error.refusal is not TransactionRefusal.PRODUCER_FENCED:
            return int(error.refusal)
        known = call.version >= _FENCED_FROM.get(call.name, call.version + 1)
        return ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_EPOCH
    return told if isinstance(error, InvalidRequest) else ErrorCode.COORDINATOR_NOT_AVAILABLE


def claim_of(request: Message) -> Claim:
    """Returns the producer that a request claims to come from."""
    names = ("transactional_id", "producer_id", "producer_epoch")
    return Claim(*(request[name] for name in names))


async def init_producer_id(call: Call) -> Message:
    """Answers InitProducerId of a transactional id."""
    request = call.request
    name = request["transactional_id"]
    if not may_use(call, name):
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    claimed = request["producer_id"], request["producer_epoch"]
    with at_work(call):
        try:
            timeout_ms = request["transaction_timeout_ms"]
            made = await call.in_pool(call.store.transactions.init, name, timeout_ms, claimed)
        except LaminaError as error:
            return {"error_code": code_of(call, error)}
    return {"producer_id": made.producer_id, "producer_epoch": made.epoch}


async def add_partitions_to_txn(call: Call) -> Message:
    """Answers AddPartitionsToTxn: all of them are added, or none."""
    request = call.request
    topics = request["topics"]
    if not may_use(call, request["transactional_id"]):
        return _everywhere(topics, {}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    places = [(topic["name"], number) for topic in topics for number in topic["partitions"]]
    refused = {place: code for place in places if (code := _problem(call, *place))}
    if refused:
        return _everywhere(topics, refused, ErrorCode.OPERATION_NOT_ATTEMPTED)
    adding = call.store.transactions.add_partitions
    return _everywhere(topics, {}, await _done(call, adding, claim_of(request), places))


def _problem(call: Call, topic: str, partition: int) -> int:
    if not call.may("write", topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return group_offsets.misplaced(call, topic, partition)


def _everywhere(topics: Iterable[Message], codes: dict[tuple[str, int], int], code: int) -> Message:
    return {
        "results_by_topic": [
            {
                "name": topic["name"],
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": codes.get((topic["name"], number), code),
                    }
                    for number in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


async def add_offsets_to_txn(call: Call) -> Message:
    """Answers AddOffsetsToTxn."""
    request = call.request
    if not may_use(call, request["transactional_id"]):
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    group = request["group_id"]
    if not may_use(call, group):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    adding = call.store.transactions.add_group
    return {"error_code": await _done(call, adding, claim_of(request), group)}


async def txn_offset_commit(call: Call) -> Message:
    """Answers TxnOffsetCommit: the offsets are kept, and count when the transaction commits."""
    request = call.request
    group, topics = request["group_id"], request["topics"]
    if not may_use(call, request["transactional_id"]):
        code: int = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return group_offsets.everywhere(topics, code)
    if not may_use(call, group):
        return group_offsets.everywhere(topics, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    offsets, refused = group_offsets.asked_for(call, topics)
    who = Identity(request["member_id"], request["generation_id"], request["group_instance_id"])

    def stage(claim: Claim, offsets: list[Committed]) -> int:
        refusal = call.store.coordinator.may_commit(group, who)
        if refusal is None:
            call.store.transactions.stage_offsets(claim, group, offsets)
        return refusal_of(refusal)

    code = await _done(call, stage, claim_of(request), offsets)
    return group_offsets.everywhere(topics, code, refused)


async def end_txn(call: Call) -> Message:
    """Answers EndTxn when the transaction is stored, or forgotten."""
    request = call.request
    if not may_use(call, request["transactional_id"]):
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

    def end(claim: Claim) -> None:
        call.store.transactions.end(claim, commit=request["committed"])

    return {"error_code": await _done(call, end, claim_of(request))}


async def _done(call: Call, action: Callable[..., int | None], *given: Any) -> int:
    """Runs what is written to disk in the pool; returns the number of what was refused."""
    with at_work(call):
        try:
            return await call.in_pool(action, *given) or ErrorCode.NONE
        except LaminaError as error:
            return code_of(call, error)
