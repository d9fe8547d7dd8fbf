"""The state of a group against a simple model: sets and dicts, one offset at a time."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.api import RecoveryReport
from lamina.formats.keratin.delta import Event, Events
from lamina.formats.kernels.interpret import interpreted
from lamina.groups import kernels
from lamina.groups.journal import Journal, Names
from lamina.groups.state import State, events_of, expand, joined, merged, spans
from lamina.log.directory import Place
from lamina_torture.simulated import SimulatedFiles

Row = tuple[int, int, int, int]
OPERATIONS = 50_000
LONG_OPERATIONS = 1_000_000


@dataclass
class Model:
    """What the documents say, as plainly as it can be said."""

    frontier: int = 0
    acked: set[int] = field(default_factory=set)
    leases: dict[int, tuple[int, int]] = field(default_factory=dict)

    def apply(self, kind: int, offset: int, deadline: int, epoch: int) -> None:
        if kind == Event.MARK_INFLIGHT:
            known = self.leases.get(offset, (0, 0))[1]
            if offset >= self.frontier and offset not in self.acked and epoch >= known:
                self.leases[offset] = (deadline, epoch)
        elif kind == Event.ACK and offset >= self.frontier:
            self.acked.add(offset)
        elif kind == Event.CLEAR_INFLIGHT and offset in self.leases:
            self.leases[offset] = (0, self.leases[offset][1])
        elif kind == Event.BUMP_ACKED_UNTIL:
            self.frontier = max(self.frontier, offset)
        elif kind == Event.RESET:
            self.frontier, self.acked, self.leases = 0, set(), {}
        while self.frontier in self.acked:
            self.frontier += 1
        self.acked = {each for each in self.acked if each >= self.frontier}
        self.leases = {
            each: lease
            for each, lease in self.leases.items()
            if each >= self.frontier and each not in self.acked
        }

    def holds(self, state: State) -> None:
        assert state.acked_until == self.frontier
        assert set(state.ahead().tolist()) == self.acked
        assert state.acked_ahead == len(self.acked)
        pieces = list(state.ahead_in_pieces(7))
        assert all(1 <= len(each) <= 7 for each in pieces)
        assert [each for piece in pieces for each in piece.tolist()] == sorted(self.acked)
        columns = (state.offsets, state.deadlines_ms, state.epochs)
        found = list(zip(*(column.tolist() for column in columns), strict=True))
        assert found == [(each, *self.leases[each]) for each in sorted(self.leases)]
        assert np.all(state.starts < state.ends)
        assert np.all(state.starts[1:] > state.ends[:-1]), "ranges that touch are joined"

    def free(self, end: int, wanted: int) -> list[int]:
        taken = self.acked | self.leases.keys()
        return [each for each in range(self.frontier, end) if each not in taken][:wanted]


def events(rows: list[Row]) -> Events:
    return Events(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def drawn_rows(drawn: random.Random, span: int) -> list[Row]:
    """Events as traffic makes them (runs of one kind) and as damage leaves them (any mix)."""
    count = drawn.choice((1, 1, 3, 9, 40))
    weights = (8, 9, 3, 0.5, 0.05)
    kinds = drawn.choices(list(Event), weights, k=count)
    if drawn.random() < 0.7:
        kinds = [kinds[0]] * count
    rows: list[Row] = []
    for kind in kinds:
        offset = 0 if kind == Event.RESET else drawn.randrange(span)
        if kind == Event.BUMP_ACKED_UNTIL:
            offset //= 4
        mark = kind == Event.MARK_INFLIGHT
        deadline, epoch = drawn.randrange(50) * mark, drawn.randint(1, 5) * mark
        rows.append((int(kind), offset, deadline, epoch))
    return sorted(rows) if drawn.random() < 0.4 else rows


def with_bumps(rows: list[Row], drawn: random.Random) -> list[Row]:
    """Puts a bump behind each reset, as whoever writes a journal does."""
    bumped: list[Row] = []
    for row in rows:
        bumped.append(row)
        if row[0] == Event.RESET:
            bumped.append((int(Event.BUMP_ACKED_UNTIL), drawn.randrange(6), 0, 0))
    return bumped


class Journaled:
    """A state whose events go to a journal, from which it is read again at any time."""

    def __init__(self, drawn: random.Random) -> None:
        self.drawn = drawn
        place = Place(SimulatedFiles(), "/data", "t", 0, lambda: 1)
        place.files.make_directory("/data")
        self.names = Names(place, "g")
        self.state = State()
        self.journal = Journal.create(self.names, self.state)

    def apply(self, rows: list[Row]) -> None:
        self.state = self.state.apply(events(rows))
        self.journal.append(events(rows))

    def disturb(self) -> None:
        """Reopens, rotates, or is killed between the two renames of a rotation; or nothing."""
        what = self.drawn.randrange(12)
        files, delta = self.names.place.files, self.names.path("delta")
        if what == 0:
            self.journal.close()
        elif what == 1:
            self.journal.rotate(self.state)
            return
        elif what == 2:
            old = files.read(delta)
            self.journal.rotate(self.state)
            files.replace(delta, old)
        elif what > 3:  # at 3 it is killed
            return
        report = RecoveryReport()
        self.journal, self.state, _ = Journal.open(self.names, report, 1 << 40, lambda kept: kept)
        assert report.events == []


def run_against_model(operations: int, seed: int) -> None:
    drawn = random.Random(seed)
    done = 0
    while done < operations:
        model, kept = Model(), Journaled(drawn)
        span = drawn.choice((12, 60, 300))
        for _ in range(40):
            rows = with_bumps(drawn_rows(drawn, span), drawn)
            done += len(rows)
            for row in rows:
                model.apply(*row)
            kept.apply(rows)
            kept.disturb()
            state = kept.state
            model.holds(state)
            wanted = drawn.randint(1, 30)
            assert expand(*state.free(span, wanted)).tolist() == model.free(span, wanted)
            asked = np.arange(span)
            expected = [each < model.frontier or each in model.acked for each in range(span)]
            assert state.are_acked(asked).tolist() == expected


def test_the_state_is_the_model_after_any_operations() -> None:
    run_against_model(OPERATIONS, seed=1)


def test_the_state_is_the_model_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = [name for name, value in vars(kernels).items() if hasattr(value, "_rows")]
    assert at_once == ["apply", "frontier_after", "are_acked", "are_held", "find_free"]
    for name in at_once:
        monkeypatch.setattr(kernels, name, interpreted(getattr(kernels, name)))
    run_against_model(OPERATIONS // 10, seed=3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_state_is_the_model_after_very_many_operations() -> None:
    run_against_model(LONG_OPERATIONS, seed=2)


ROWS = st.lists(
    st.one_of(
        st.tuples(st.just(1), st.integers(0, 30), st.integers(1, 9), st.integers(1, 4)),
        st.tuples(st.sampled_from((2, 3, 4)), st.integers(0, 30), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(ROWS, st.integers(0, 40))
def test_how_events_are_cut_into_batches_does_not_matter(rows: list[Row], cut: int) -> None:
    whole = State().apply(events(rows))
    state = State()
    for part in (rows[:cut], rows[cut:]):
        if part:
            state = state.apply(events(part))
    one_by_one = State()
    for row in rows:
        one_by_one = one_by_one.apply(events([row]))
    assert state.equals(whole)
    assert one_by_one.equals(whole)


def as_traffic(drawn: random.Random) -> list[Row]:
    """A journal as live traffic writes it: the epochs of an offset only grow."""
    epochs: dict[int, int] = {}
    rows: list[Row] = []
    for _ in range(drawn.randint(1, 60)):
        offset = drawn.randrange(12)
        kind = drawn.choice((1, 1, 1, 2, 3, 4))
        if kind == 1:
            epochs[offset] = epochs.get(offset, 0) + drawn.randint(0, 1) or 1
            rows.append((1, offset, drawn.randint(1, 99), epochs[offset]))
        elif kind == 4:
            rows += [(5, 0, 0, 0), (4, drawn.randrange(6), 0, 0)] if drawn.random() < 0.2 else []
            epochs = {} if rows and rows[-1][0] == 4 else epochs
        else:
            rows.append((kind, offset, 0, 0))
    return rows or [(2, 1, 0, 0)]


def test_an_old_journal_replayed_over_what_it_led_to_changes_nothing() -> None:
    drawn = random.Random(3)
    for _ in range(2000):
        rows = as_traffic(drawn)
        after = State().apply(events(rows))
        assert after.apply(events(rows)).equals(after), rows


def test_a_bump_never_moves_back_and_a_lower_epoch_is_ignored() -> None:
    state = State().apply(events([(4, 10, 0, 0), (4, 3, 0, 0), (1, 12, 50, 3), (1, 12, 99, 2)]))
    assert state.acked_until == 10
    assert (state.deadlines_ms.tolist(), state.epochs.tolist()) == ([50], [3])
    assert state.apply(events_of(Event.MARK_INFLIGHT, 5, 99, 9)).equals(state), "it is acked"


def test_a_clamped_state_has_nothing_at_or_above_the_end() -> None:
    acks = [(2, each, 0, 0) for each in (12, 13, 14, 20)]
    state = State(acked_until=10).apply(events([*acks, (1, 11, 5, 1), (1, 17, 5, 1)]))
    assert state.is_beyond(20)
    assert not state.is_beyond(21)
    cut = state.clamped(14)
    assert (cut.acked_until, cut.ahead().tolist(), cut.offsets.tolist()) == (10, [12, 13], [11])
    assert not cut.is_beyond(14)
    assert state.clamped(4).acked_until == 4


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_ranges_are_sets(first: set[int], second: set[int]) -> None:
    a, b = (spans(np.array(sorted(each), dtype=np.int64)) for each in (first, second))
    assert expand(*a).tolist() == sorted(first)
    starts, ends = merged(a, b)
    assert expand(starts, ends).tolist() == sorted(first | second)
    assert np.all(starts[1:] > ends[:-1])


def acked_in_random_order(total: int, window: int) -> float:
    """The most MiB that the state ever takes, with everything that makes the next one."""
    drawn = np.random.default_rng(7)
    state = State().apply(events_of(Event.ACK, np.arange(20)))
    state = State()
    tracemalloc.start()
    for start in range(0, total, window):
        order = start + drawn.permutation(window)
        for first in range(0, window, 1000):
            state = state.apply(events_of(Event.ACK, np.sort(order[first : first + 1000])))
    peak: int = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert state.acked_until == total
    assert len(state.starts) == 0
    return peak / (1 << 20)


def test_memory_is_that_of_what_is_acked_ahead() -> None:
    assert acked_in_random_order(1_000_000, 100_000) < 50


@pytest.mark.long
def test_memory_stays_small_over_ten_million_random_acks() -> None:
    assert acked_in_random_order(10_000_000, 100_000) < 50


def test_joined_events_are_those_one_after_the_other() -> None:
    parts = [events_of(Event.RESET), events_of(Event.ACK, np.array([1, 2]))]
    assert joined(parts).types.tolist() == [5, 2, 2]
    assert joined(parts).offsets.tolist() == [0, 1, 2]
