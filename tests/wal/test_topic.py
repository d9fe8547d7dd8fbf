"""Where a wal topic's records lie, and how readers that wait for more of them are woken."""

from __future__ import annotations

import threading
from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lamina.config import TopicSettings
from lamina.log.data_directory import DataDirectory
from lamina.wal.segments import Segment
from lamina.wal.topic import Arrivals, Run, TopicLayout, TopicState
from lamina_torture.simulated import SimulatedFiles

EDGES = st.lists(st.integers(1, 60), min_size=2, max_size=12, unique=True).map(sorted)
"""The bounds of places: what lies between two of them is held, or is a hole."""


def segment(first: int, end: int) -> Segment:
    return Segment(1, "directory", first, end, 0, end - first, 0, 0, sealed=True)


def laid_out(edges: list[int], kinds: list[str]) -> TopicLayout:
    segments, runs = [], []
    for (first, end), kind in zip(pairwise(edges), kinds, strict=False):
        if kind == "segment":
            segments.append(segment(first, end))
        elif kind == "run":
            runs.append(Run(first, array("q", range(end - first))))
    return TopicLayout(tuple(segments), tuple(runs))


@given(EDGES, st.lists(st.sampled_from(["segment", "run", "hole"]), min_size=11, max_size=11))
def test_a_sequence_is_found_where_it_lies_or_in_the_next_place(
    edges: list[int], kinds: list[str]
) -> None:
    layout = laid_out(edges, kinds)
    places = [*layout.segments, *layout.runs]
    for sequence in range(1, 62):
        above = [each for each in places if sequence < each.end_sequence]
        wanted = min(above, key=lambda each: each.first_sequence, default=None)
        assert layout.source_for(sequence) is wanted


def test_a_segment_is_read_rather_than_the_wal_where_both_have_a_record() -> None:
    both = segment(1, 6)
    layout = TopicLayout((both,), (Run(3, array("q", range(6))),))
    assert [layout.source_for(sequence) for sequence in (1, 3, 5)] == [both] * 3
    assert layout.source_for(6) is layout.runs[0]
    assert layout.source_for(9) is None


# ---------------------------------------------------------------- readers that wait

LONG_S = 300.0


def empty_topic() -> TopicState:
    place = DataDirectory(SimulatedFiles(), "/d", lambda: 0).place("t", 0)
    return TopicState(place, 7, TopicSettings())


def test_a_reader_that_waits_is_woken_by_what_comes() -> None:
    arrivals, topic, woken = Arrivals(), empty_topic(), threading.Event()

    def wait() -> None:
        if arrivals.wait(topic, 1, LONG_S, "durable"):
            woken.set()

    reader = threading.Thread(target=wait, daemon=True)
    reader.start()
    while topic.topic_id not in arrivals._waiting:
        pass
    with arrivals._changed:  # the reader sleeps by now: it gives the lock back only there
        topic.durable_end = 3
    arrivals.announce([topic])
    assert woken.wait(10.0), "nobody woke it"
    reader.join()


def test_nobody_is_counted_as_waiting_who_has_gone() -> None:
    arrivals, topic = Arrivals(), empty_topic()
    assert not arrivals.wait(topic, 1, 0.0, "durable")
    topic.durable_end = 3
    assert arrivals.wait(topic, 1, LONG_S, "durable")
    assert arrivals._waiting == {}, "announcing would take the lock for nobody"
