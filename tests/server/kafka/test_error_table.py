"""Every error of ours has a number of Kafka's, and those that may pass can be tried again."""

from __future__ import annotations

import inspect

import pytest
from kafka.errors import for_code

from lamina import errors
from lamina.errors import Closed, LaminaError, Unavailable
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.server.kafka.error_table import code_for, code_of
from lamina.wire.kafka.error_codes import ErrorCode

KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, LaminaError) and kind is not LaminaError
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_number(kind: type[LaminaError]) -> None:
    code = code_of(kind.__new__(kind, "x"))
    assert code not in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE)
    if issubclass(kind, Unavailable):
        assert for_code(code).retriable


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_of_a_batch_has_a_number(fault: Fault) -> None:
    code = code_of(BadBatch(fault, "x"))
    assert code is not ErrorCode.UNKNOWN_SERVER_ERROR
    if fault is not Fault.CORRUPT:  # which Java and librdkafka try again, kafka-python does not
        assert not for_code(code).retriable


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_coordinator_that_cannot_answer_now_is_looked_for_again(kind: type[LaminaError]) -> None:
    """Every other number that stands for trouble ends a member of aiokafka for good."""
    error = kind.__new__(kind, "x")
    for api in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch"):
        told = code_for(api, error)
        if issubclass(kind, Unavailable | Closed):
            assert told is ErrorCode.NOT_COORDINATOR
        else:
            assert told is code_of(error)
    assert code_for("Produce", error) is code_of(error)
