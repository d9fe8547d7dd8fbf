"""What each topic took, gave and had to refuse since the server started, by any door.

Rules.
1. So many topics have counters of their own; those that come later are counted together, under the
   empty name, which no topic has. Only calls that were answered give a topic counters, so only
   topics that are there have them; what was refused before counts under the empty name.
2. A key with a prefix sees the counters of its topics, and not what others have together.
3. The counters of a topic go with it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

from prometheus_client.core import CounterMetricFamily

REST = ""
_NAMES = {
    "appended_records": "Records appended, by topic",
    "appended_bytes": "Bytes of appends as they came, by topic",
    "read_records": "Records sent, by topic",
    "read_bytes": "Bytes of records sent, by topic",
    "busy_calls": "Calls refused because a limit was reached, by topic",
}


class TopicCounters:
    """Counts by topic; threads share them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}

    def resize(self, most: int) -> None:
        """Changes how many topics have counters of their own; those that have keep them."""
        self._most = most

    def appended(self, topic: str, records: int, size_bytes: int) -> None:
        """Counts an append."""
        with self._lock:
            counts = self._of(topic)
            counts[0] += records
            counts[1] += size_bytes

    def read(self, topic: str, records: int, size_bytes: int) -> None:
        """Counts records that were sent."""
        with self._lock:
            counts = self._of(topic)
            counts[2] += records
            counts[3] += size_bytes

    def busy(self, topic: str) -> None:
        """Counts a call that a limit refused, for a topic of any name, which need not be there."""
        with self._lock:
            self._of(topic if topic in self._counts else REST)[4] += 1

    def _of(self, topic: str) -> list[int]:
        counts = self._counts.get(topic)
        if counts is None:
            has_room = len(self._counts) - (REST in self._counts) < self._most
            counts = self._counts.setdefault(topic if has_room else REST, [0] * len(_NAMES))
        return counts

    def families(self, topics: Collection[str], prefix: str = "") -> Iterator[CounterMetricFamily]:
        """Yields the counters of topics that are there and begin with a prefix."""
        with self._lock:
            for gone in self._counts.keys() - topics - {REST}:
                del self._counts[gone]
            shown = {
                topic: tuple(counts)
                for topic, counts in self._counts.items()
                if topic.startswith(prefix)
            }
        for place, (name, text) in enumerate(_NAMES.items()):
            family = CounterMetricFamily(f"lamina_topic_{name}", text, labels=["topic"])
            for topic, counts in shown.items():
                family.add_metric([topic], counts[place])
            yield family
