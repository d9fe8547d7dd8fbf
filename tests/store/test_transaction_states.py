"""Where a transactional producer stands: who is fenced, what begins, and what an end does."""

from __future__ import annotations

import pytest

from lamina.errors import DuplicateSequence, OutOfSequence
from lamina.formats.committed_offsets import Standing
from lamina.store.transaction_states import (
    Claim,
    Sequences,
    Standings,
    State,
    TransactionRefusal,
    TransactionRefused,
    of_entry,
)

OWN = Claim("t", 7, 3)
PLACE = ("topic", 0)


def at(state: State = State.IDLE) -> Standings:
    return Standings("t", 7, 3, 60_000, state, 5)


def refusal(action: object, *given: object, **named: object) -> TransactionRefusal | None:
    try:
        action(*given, **named)  # type: ignore[operator]
    except TransactionRefused as error:
        return error.refusal
    return None


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (OWN, None),
        (Claim("t", 7, 2), TransactionRefusal.PRODUCER_FENCED),
        (Claim("t", 7, 4), TransactionRefusal.PRODUCER_FENCED),
        (Claim("t", 8, 3), TransactionRefusal.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_only_the_present_producer_is_let_through(
    claim: Claim, expected: TransactionRefusal | None
) -> None:
    assert refusal(at().require, claim) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.IDLE, True),
        (State.ONGOING, False),
        (State.COMMITTED, True),
        (State.ABORTED, True),
        (State.DECIDED, TransactionRefusal.CONCURRENT_TRANSACTIONS),
        (State.DROPPED, TransactionRefusal.INVALID_TXN_STATE),
    ],
)
def test_a_transaction_begins_where_that_tears_none(state: State, expected: object) -> None:
    refused = refusal(at(state).must_begin)
    assert (refused or at(state).must_begin()) == expected


@pytest.mark.parametrize("state", State)
def test_records_belong_to_an_ongoing_transaction(state: State) -> None:
    expected = None if state is State.ONGOING else TransactionRefusal.INVALID_TXN_STATE
    assert refusal(at(state).require_ongoing) is expected


LOST = TransactionRefusal.INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (State.IDLE, LOST, False),
        (State.ONGOING, True, True),
        (State.DECIDED, True, LOST),
        (State.COMMITTED, False, LOST),
        (State.ABORTED, LOST, False),
        (State.DROPPED, LOST, True),
    ],
)
def test_an_end_is_done_once_and_answered_again(
    state: State, commit: object, abort: object
) -> None:
    for is_commit, expected in ((True, commit), (False, abort)):
        refused = refusal(at(state).ends_by, commit=is_commit)
        found = at(state).ends_by(commit=is_commit) if refused is None else refused
        assert found == expected


def test_the_next_epoch_fences_and_may_be_asked_for_again() -> None:
    bumped = at(State.ONGOING).bumped(None, 1000)
    assert (bumped.producer_id, bumped.epoch, bumped.timeout_ms) == (7, 4, 1000)
    assert (bumped.state, bumped.number) == (State.IDLE, 5)
    assert refusal(bumped.require, OWN) is TransactionRefusal.PRODUCER_FENCED
    assert bumped.is_repeat_of_bump((7, 3))
    assert not bumped.is_repeat_of_bump((7, 2))
    bumped.state = State.ONGOING
    assert not bumped.is_repeat_of_bump((7, 3))


def test_where_epochs_are_used_up_a_new_id_begins() -> None:
    bumped = at().bumped(9, 1000)
    assert (bumped.producer_id, bumped.epoch) == (9, 0)
    assert refusal(bumped.require, OWN) is TransactionRefusal.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("standing", "state"),
    [
        (Standing.NONE, State.IDLE),
        (Standing.ONGOING, State.DROPPED),
        (Standing.COMMITTED, State.COMMITTED),
        (Standing.ABORTED, State.ABORTED),
    ],
)
def test_a_restart_drops_what_was_open(standing: Standing, state: State) -> None:
    again = of_entry(at().entry(standing, 99))
    assert again.state is state
    known = (again.transactional_id, again.producer_id, again.epoch, again.timeout_ms)
    assert (*known, again.number, again.used_ms) == ("t", 7, 3, 60_000, 5, 99)


@pytest.mark.parametrize(
    ("number", "state", "done"),
    [
        (4, State.DROPPED, True),
        (5, State.DROPPED, False),
        (5, State.COMMITTED, True),
        (5, State.IDLE, True),
        (6, State.COMMITTED, False),
    ],
)
def test_a_file_is_done_when_something_later_is_written(
    number: int, state: State, done: bool
) -> None:
    assert at(state).has_done(number) is done


def test_sequences_go_on_in_their_epoch_and_repeats_are_not_kept_again() -> None:
    known = Sequences(from_zero=True)
    with pytest.raises(OutOfSequence):
        known.is_new(PLACE, 5, 1)
    for base in range(0, 70, 10):
        assert known.is_new(PLACE, base, 10)
        known.note(PLACE, base, 10)
    assert not known.is_new(PLACE, 60, 10)
    assert not known.is_new(PLACE, 20, 10)
    with pytest.raises(DuplicateSequence):
        known.is_new(PLACE, 0, 10)
    with pytest.raises(OutOfSequence) as found:
        known.is_new(PLACE, 80, 10)
    assert not isinstance(found.value, DuplicateSequence)
    assert known.is_new(("topic", 1), 0, 1)


def test_after_a_restart_a_partition_begins_with_whatever_comes_and_counts_wrap() -> None:
    known = Sequences(from_zero=False)
    assert known.is_new(PLACE, 2**31 - 2, 5)
    known.note(PLACE, 2**31 - 2, 5)
    assert known.is_new(PLACE, 3, 1)
    with pytest.raises(DuplicateSequence):
        known.is_new(PLACE, 2**31 - 3, 1)
