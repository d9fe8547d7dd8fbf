"""The routers of a store that writes: rules that copy records of wal topics to others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lamina.api import RouterInfo
from lamina.errors import InvalidRequest, UnknownRouter, typed_errors
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.router_rule import Rule, require_name, rule_of
from lamina.log.sealed import Archivable
from lamina.store.disk_reserve import Reserve
from lamina.store.lookup import Lookup
from lamina.store.write_ahead import WriteAhead

if TYPE_CHECKING:
    from lamina.wal.engine import WalEngine


class RouterRules:
    """Creates, alters and deletes routers, in turn with changes of topics (`changing`)."""

    def __init__(
        self,
        lookup: Lookup[Archivable],
        write_ahead: WriteAhead,
        reserve: Reserve,
        changing: threading.Lock,
    ) -> None:
        self._lookup = lookup
        self._write_ahead = write_ahead
        self._reserve = reserve
        self._changing = changing

    def routers(self) -> list[RouterInfo]:
        """Lists all routers, by name."""
        self._lookup.require_open()
        wal = self._write_ahead.engine
        if wal is None:
            return []
        with wal.changing:
            return wal.routers.listed()

    @typed_errors("creating a router")
    def create_router(
        self,
        name: str,
        source: str,
        target: str,
        *,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        node: bytes | None = None,
    ) -> None:
        """Copies records that are appended to `source` from now on to `target`, too."""
        self._lookup.require_open()
        require_name(name)
        with self._changing:
            rule = rule_of(tag, tag_prefix, node)
            if rule is None:
                raise InvalidRequest("a router takes exactly one of tag, tag_prefix and node")
            topics = self._connectable(source, target)
            with self._wal_of_routers().changing:
                if self._wal_of_routers().routers.has(name):
                    raise InvalidRequest(f"router {name!r} exists already; alter or delete it")
                self._put(name, topics, rule)

    @typed_errors("changing a router")
    def alter_router(
        self,
        name: str,
        *,
        target: str | None = None,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        node: bytes | None = None,
    ) -> None:
        """Changes where a router copies to, or what; what is not given stays as it is."""
        self._lookup.require_open()
        with self._changing, self._wal_of_routers().changing:
            known = self._wal_of_routers().routers.get(name)
            names = {each.name: each for each in self.routers()}
            rule = rule_of(tag, tag_prefix, node) or Rule(known.match, known.pattern)
            topics = self._connectable(names[name].source, target or names[name].target)
            self._put(name, topics, rule)

    @typed_errors("deleting a router")
    def delete_router(self, name: str) -> None:
        """Ends a router; what it has copied stays."""
        self._lookup.require_open()
        with self._changing, self._wal_of_routers().changing:
            self._reserve.use(lambda: self._wal_of_routers().routers.remove(name))

    def _wal_of_routers(self) -> WalEngine:
        if self._write_ahead.engine is None:
            raise UnknownRouter("there is no router: the store has no wal topic")
        return self._write_ahead.engine

    def _connectable(self, source: str, target: str) -> tuple[TopicFile, TopicFile]:
        found = self._lookup.topic(source), self._lookup.topic(target)
        for about in found:
            if not about.topic_ids:
                raise InvalidRequest(
                    f"routers connect wal topics; topic {about.name!r} is {about.format}"
                )
        if source == target:
            raise InvalidRequest(f"a router copies to another topic, not to {source!r} itself")
        return found

    def _put(self, name: str, topics: tuple[TopicFile, TopicFile], rule: Rule) -> None:
        self._wal_of_routers().routers.put(name, topics, rule)
