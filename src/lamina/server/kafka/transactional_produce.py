"""Produce within a transaction: batches are checked as for an append, and kept until the end.

The answer has no offset (-1), as there is none before the transaction commits; clients show it as
unknown.

Rules.
1. The batches of one connection are kept in the order of its requests.
2. A batch is refused for all that an append of it would be refused for: a commit finds nothing
   that its topic cannot keep.
"""

from __future__ import annotations

from lamina.errors import InvalidRequest, LaminaError
from lamina.formats.kafka.batch import Batch
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.server.kafka import transacting
from lamina.server.kafka.sessions import Call
from lamina.store.transaction_states import Claim, TransactionRefusal, TransactionRefused
from lamina.wire.kafka.error_codes import ErrorCode

_MAY_PASS = (
    TransactionRefusal.CONCURRENT_TRANSACTIONS,
    TransactionRefusal.COORDINATOR_LOAD_IN_PROGRESS,
    TransactionRefusal.COORDINATOR_NOT_AVAILABLE,
)


def stage(call: Call, place: tuple[str, int], batch: Batch, data: memoryview) -> None:
    """Keeps a batch; raises what it is refused for."""
    call.door.broker.rate.spend(call.caller.name)
    if batch.producer_id < 0 or batch.producer_epoch < 0 or batch.base_sequence < 0:
        raise BadBatch(Fault.INVALID, "a batch of a transaction has a producer and a sequence")
    claim = Claim(call.request["transactional_id"], batch.producer_id, batch.producer_epoch)
    call.store.transactions.stage(claim, place, batch, bytes(data))


def code_of(call: Call, error: LaminaError) -> tuple[int, str]:
    """Returns the number and the words for a batch that was refused."""
    if isinstance(error, TransactionRefused):
        if error.refusal in _MAY_PASS:
            return ErrorCode.REQUEST_TIMED_OUT, str(error)
        return transacting.code_of(call, error), str(error)
    code, said = call.told(error)
    if isinstance(error, InvalidRequest) and "max.message.bytes" in said:
        code = ErrorCode.MESSAGE_TOO_LARGE
    return code, said


def may_use(call: Call) -> bool:
    """Returns whether the caller's key covers the transactional id of a request."""
    return call.may("write", call.request["transactional_id"])
