"""Copies of a topic's small files that lie elsewhere: what is asked when the local one is damaged.

The archive keeps `topic.json` and `ledger.json` of every archived topic. A topic without an archive
has no copies, and one whose archive cannot be reached has none now: opening goes on without.
"""

from __future__ import annotations

from typing import Protocol

from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile


class Spares(Protocol):
    """Where copies are asked for."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns the copy of a topic's file, if there is a sound one."""

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns the copy of a partition's ledger, if there is a sound one."""


class NoSpares:
    """No copies, or none that can be reached."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns None."""
        return None

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns None."""
        return None


NO_SPARES = NoSpares()
