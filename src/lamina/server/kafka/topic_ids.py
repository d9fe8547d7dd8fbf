"""Ids of topics: the same for as long as a topic lives, another one when it is made again.

An id is made of the store's identity, the topic's name and its epoch, so nothing has to be kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from lamina.errors import UnknownTopic
from lamina.store.store import Store

NO_ID = bytes(16)


def topic_id(store: Store, name: str) -> bytes:
    """Returns the id of a topic; raises UnknownTopic."""
    return id_of(store, name, store.describe_topic(name).epoch)


def id_of(store: Store, name: str, epoch: int) -> bytes:
    """Returns the id of a topic of a known epoch."""
    return uuid.uuid5(store.identity.uuid, f"{name}/{epoch}").bytes


class TopicIds:
    """Finds topics by their ids. What it remembers is only believed after a second look."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def name_of(self, store: Store, wanted: bytes) -> str | None:
        """Returns the name of the topic that has an id now."""
        name = self._names.get(wanted)
        if name is not None and self._is_still(store, name, wanted):
            return name
        self._names = {identity: name for name, identity in _ids(store)}
        return self._names.get(wanted)

    @staticmethod
    def _is_still(store: Store, name: str, wanted: bytes) -> bool:
        try:
            return topic_id(store, name) == wanted
        except UnknownTopic:
            return False


def _ids(store: Store) -> Iterator[tuple[str, bytes]]:
    for name in store.topics():
        try:
            yield name, topic_id(store, name)
        except UnknownTopic:  # deleted meanwhile
            continue
