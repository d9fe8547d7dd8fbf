"""Topics and partitions by name, for as long as a store is open; every part of a store uses it.

Each kind of store has one, made of two functions: which topics there are, and the reader of one of
their partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from lamina.arguments import no_partition
from lamina.errors import Closed, UnknownTopic
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.interfaces import LogReader
from lamina.store.catalog import find

Kind_co = TypeVar("Kind_co", bound=LogReader, covariant=True)


class Lookup(Generic[Kind_co]):
    """Finds topics and partitions; once `is_closed` is set, every call raises Closed."""

    def __init__(
        self,
        files: Callable[[], Mapping[str, TopicFile]],
        reader: Callable[[TopicFile, int], Kind_co],
    ) -> None:
        self._files = files
        self._reader = reader
        self.is_closed = False

    def require_open(self) -> None:
        """Raises Closed once the store is closed."""
        if self.is_closed:
            raise Closed("the store is closed")

    def topics(self) -> Mapping[str, TopicFile]:
        """Returns all topics by name."""
        self.require_open()
        return self._files()

    def topic(self, name: str) -> TopicFile:
        """Returns a topic; raises UnknownTopic."""
        self.require_open()
        about: TopicFile = find(self._files(), name)
        return about

    def partition(self, topic: str, partition: int) -> Kind_co:
        """Returns a partition; raises UnknownTopic if the topic or the number does not exist."""
        if self.is_closed:
            self.require_open()
        topics = self._files()
        usual = type(topic) is str and topic in topics
        about = topics[topic] if usual else self.topic(topic)
        if not 0 <= partition < about.partitions:
            raise UnknownTopic(no_partition(topic, about.partitions, partition))
        return self._reader(about, partition)

    def partitions(self, about: TopicFile) -> list[Kind_co]:
        """Returns all partitions of a topic."""
        return [self._reader(about, number) for number in range(about.partitions)]
