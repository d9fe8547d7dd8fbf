"""What readers without a store have left is taken over by the next writer, once and no more."""

from __future__ import annotations

from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups.positions import leave, pending, take_over
from lamina.log.data_directory import DataDirectory
from lamina_torture.simulated import SimulatedFiles

ABOUT = TopicFile("t", "keratin", 2, 3, 1_700_000_000_000)


def test_only_partitions_that_the_topic_has_are_taken_over() -> None:
    files = SimulatedFiles()
    boot = DataDirectory(files, "/srv/data", lambda: 0)
    files.make_directory("/srv/data")
    left = Position("g", (TopicPosition("t", ABOUT.epoch, {0: 5, 1: 6, 2: 7, 9: 8}),))
    leave(files, "/srv/data", left)
    taken: list[tuple[str, str, int, int]] = []
    for _ in range(2):
        take_over(boot, {"t": ABOUT}, lambda about, *where: taken.append((about.name, *where)))
    assert taken == [("t", "g", 0, 5), ("t", "g", 1, 6)], "and each of them once"
    assert list(pending(boot)) == []
