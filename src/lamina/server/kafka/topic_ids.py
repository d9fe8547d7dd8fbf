"""Ids of topics: the same for as long as a topic lives, another one when it is made again.

An id is made of the store's identity, the topic's name and its epoch, so nothing has to be kept.
"""

from __future__ import annotations

import uuid

from lamina.errors import UnknownTopic
from lamina.store.store import Store

NO_ID = bytes(16)


def topic_id(store: Store, name: str) -> bytes:
    """Returns the id of a topic; raises UnknownTopic."""
    return id_of(store, name, store.topic_changes.epoch_of(name))


def id_of(store: Store, name: str, epoch: int) -> bytes:
    """Returns the id of a topic of a known epoch."""
    return uuid.uuid5(store.identity.uuid, f"{name}/{epoch}").bytes


class TopicIds:
    """Finds topics by their ids. What it remembers is only believed after a second look.

    A client may ask for any number of ids that nobody has: all topics are looked at again only if
    one was made since.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._made_count = -1

    def name_of(self, store: Store, wanted: bytes) -> str | None:
        """Returns the name of the topic that has an id now."""
        changes = store.topic_changes
        if changes.made_count != self._made_count:
            self._made_count = changes.made_count  # first: whatever comes later is seen next time
            self._names = {id_of(store, *each): each[0] for each in changes.epochs().items()}
        name = self._names.get(wanted)
        return name if name is not None and self._is_still(store, name, wanted) else None

    @staticmethod
    def _is_still(store: Store, name: str, wanted: bytes) -> bool:
        try:
            return topic_id(store, name) == wanted
        except UnknownTopic:
            return False
