"""Copies of small files in the archive: put once, and all of them again when one was damaged."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.api import Gap
from lamina.archive.object_list import Shelf
from lamina.archive.topic_copies import Metadata
from lamina.formats.documents.ledger import DELETED, Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from tests.archive.rig import NOW_MS, TOPIC, memory

ABOUT = TopicFile(TOPIC, "keratin", 1, 1, NOW_MS)
LEDGER = Ledger((Gap(0, 5, DELETED, 0),))


class Groups:
    """One group, whose copy is always the same."""

    def copies(self, about: TopicFile, partition: int, archived_end: int) -> Mapping[str, bytes]:
        return {"readers": b"state"}

    def is_gone(self, topic_file: str, group: str) -> bool:
        return group == "gone"


class Offsets:
    """Committed offsets, whose copy is always the same."""

    def copy(self, about: TopicFile, partition: int, archived_end: int) -> bytes | None:
        return b"offsets"


def test_after_damage_everything_of_the_partition_is_put_again() -> None:
    objects = memory()
    metadata, shelf = Metadata(objects, Groups, Offsets), Shelf(objects, ABOUT, 0)
    metadata.save(shelf, LEDGER)
    keys = sorted(info.key for info in objects.list(""))
    assert {paths.archive_ledger(TOPIC, 0), paths.archive_offsets(TOPIC, 0)} <= set(keys)
    for key in keys:
        objects.delete(key)
    metadata.save(shelf, LEDGER)
    assert list(objects.list("")) == [], "nothing has changed: nothing is put twice"
    left = paths.archive_group(TOPIC, 0, "gone")
    objects.create(left, b"of a group that is gone")
    metadata.forget(TOPIC, 0)
    shelf = Shelf(objects, ABOUT, 0)
    metadata.save(shelf, LEDGER)
    assert sorted(info.key for info in objects.list("")) == keys


def test_a_copy_that_was_put_goes_when_its_group_is_gone() -> None:
    class Ending(Groups):
        """The group is there once, and then gone."""

        made: Mapping[str, bytes] = {"readers": b"state"}

        def copies(
            self, about: TopicFile, partition: int, archived_end: int
        ) -> Mapping[str, bytes]:
            return self.made

        def is_gone(self, topic_file: str, group: str) -> bool:
            return group not in self.made

    objects, groups = memory(), Ending()
    metadata, shelf = Metadata(objects, lambda: groups, Offsets), Shelf(objects, ABOUT, 0)
    metadata.save(shelf, LEDGER)
    key = paths.archive_group(TOPIC, 0, "readers")
    assert objects.read(key).data == b"state"
    groups.made = {}
    metadata.save(shelf, LEDGER)
    assert key not in [info.key for info in objects.list("")]
