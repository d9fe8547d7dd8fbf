"""One look from a page: at what, by whom, asking for what; and how long lists come in pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.server import telling
from lamina.server.auth import Caller
from lamina.server.broker import Broker
from lamina.server.connected_client import ConnectedClient
from lamina.server.console import asked
from lamina.server.console.history import WINDOWS_S, History
from lamina.store.store import Store

PAGE = 50


@dataclass(frozen=True, slots=True)
class View:
    """One look."""

    store: Store
    history: History
    caller: Caller
    given: Mapping[str, Any]
    kafka_clients: Callable[[], list[ConnectedClient]] = list
    broker: Broker | None = None
    started_ms: int = 0

    def may_see(self, topic: str) -> bool:
        """Returns whether the caller may know of a topic, or of a classic group by its name."""
        return topic.startswith(self.caller.prefix)

    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists the groups that the caller may know of, as (topic, group)."""
        found = self.store.groups(topic)
        pairs: list[tuple[str, str]] = telling.visible(self.caller, self.store, "groups", found)
        return pairs

    def drawn(self, keys: Mapping[str, tuple[str, ...]]) -> dict[str, list[Any]]:
        """Returns series over the span of time that is asked for."""
        words = tuple(map(str, WINDOWS_S))
        window_s = int(asked.one_of(self.given, "window_s", words))
        return self.history.rings.drawn(window_s, keys)

    def topic(self, name: str = "topic") -> str:
        """Reads the topic that is asked for; raises NotAllowed where it is not the caller's."""
        found = asked.text(self.given, name)
        self.caller.require("read", found, "looking")
        return found


def page_about(total: int, given: Mapping[str, Any]) -> dict[str, int]:
    """Returns which page of so many rows is asked for, and how many there are."""
    pages = max(1, -(-total // PAGE))
    page = min(asked.number(given, "page", 0), pages - 1)
    return {"total": total, "page": page, "pages": pages}


def page_of(rows: Sequence[Any], given: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, int]]:
    """Returns the page of rows that is asked for, and what `page_about` tells of it."""
    about = page_about(len(rows), given)
    first = about["page"] * PAGE
    return rows[first : first + PAGE], about
