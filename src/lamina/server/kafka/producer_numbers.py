"""InitProducerId: a number for a producer that nobody had before, or the next epoch of one."""

from __future__ import annotations

from lamina.errors import LaminaError
from lamina.server.kafka import transacting
from lamina.server.kafka.sessions import Call, at_work
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

_EPOCH_MAX = (1 << 15) - 1


async def init_producer_id(call: Call) -> Message:
    """Answers InitProducerId: a new number, or the next epoch of one that the producer has."""
    request = call.request
    if request["transactional_id"] is not None:
        return await transacting.init_producer_id(call)
    if not call.may("write", call.caller.prefix or None):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    known, epoch = request["producer_id"], request["producer_epoch"]
    if known >= 0 and 0 <= epoch < _EPOCH_MAX - 1:
        return {"producer_id": known, "producer_epoch": epoch + 1}
    try:
        with at_work(call):
            number = await call.in_pool(call.store.new_producer_id)
    except LaminaError as error:
        return {"error_code": call.told(error)[0]}
    return {"producer_id": number, "producer_epoch": 0}
