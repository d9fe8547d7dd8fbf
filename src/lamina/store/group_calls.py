"""The groups' part of a store's face."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.api import GroupInfo, Move, Start
from lamina.groups import registry
from lamina.groups.group import Group
from lamina.groups.registry import Groups
from lamina.store.reads import StoreReader


class GroupAccess(StoreReader):
    """What users of a store that writes can do with groups."""

    _groups: Groups

    def group(self, topic: str, name: str, *, start: Start = "earliest") -> Group:
        """Returns a consumer group; one that is not there yet is made."""
        return self._groups.group(self._topic(topic), name, start)

    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        self._require_open()
        return self._groups.names(topic)

    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Returns for each partition what a group has acked, holds, and how far it is behind."""
        return self._groups.describe(self._topic(topic).name, group)

    def reset_group(
        self,
        topic: str,
        group: str,
        *,
        to: int | str | None = None,
        timestamp_ms: int | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        execute: bool = False,
    ) -> list[Move]:
        """Plans to move a group; carries it out with `execute`."""
        target = registry.reset_target(to, timestamp_ms, shift)
        return self._groups.reset(
            self._topic(topic).name, group, target, partitions, execute=execute
        )

    def delete_group(self, topic: str, group: str) -> None:
        """Deletes a consumer group with all that it has acked."""
        self._groups.delete(self._topic(topic).name, group)
