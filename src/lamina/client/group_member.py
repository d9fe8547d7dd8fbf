"""A consumer's membership of a classic group: it joins, says that it is alive, and has a share.

    out ──drive──▶ settled ──(called to a rebalance)──▶ called ──drive──▶ settled
     ▲                └───────────(expired, or fenced)────┴─────▶ out: the share is lost

Joining happens inside of the consumer's own polls (`drive`), because a share may change only while
the program is not at work on it. Heartbeats are sent by a thread, so that a program may take its
time between two polls: up to `max.poll.interval.ms`, then its share goes to others.

Rules.
1. A share counts from the answer of `sync` until the next one is known, or until it is lost; who
   is called may still commit for it. Before it joins again, the consumer has given it up, unless
   its assignor is cooperative and the share is not lost: then it says what it has, and keeps it.
2. Every call to the store may be repeated: a join or sync that was waited for in vain is made
   again and finds the same generation, or the next one.
3. The leader shares out as the assignor that the members agree on does (`client.assignors`), over
   all members, Kafka's own among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lamina.api.memberships import Assigned, Identity, Joined, JoinRequest, Refusal
from lamina.api.store_api import StoreApi
from lamina.client.assignors import ASSIGNORS, Share
from lamina.errors import Closed, Fenced, InvalidRequest, LaminaError, UnknownTopic
from lamina.wire.kafka import consumer_protocol
from lamina.wire.kafka.consumer_protocol import Subscription

PARTITIONS_CHECKED_S = 5.0
"""How often a leader looks whether topics have got more partitions."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """How a member behaves; names and defaults are Kafka's."""

    client_id: str = "lamina"
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[str, ...] = ("range", "roundrobin")

    @property
    def is_cooperative(self) -> bool:
        """Whether shares last through a rebalance."""
        return all(ASSIGNORS[each].is_cooperative for each in self.assignors)


class GroupMember:
    """One consumer's place in a group. `drive` is for the consumer's thread."""

    def __init__(self, store: StoreApi, group: str, settings: MemberSettings) -> None:
        self._store = store
        self._group = group
        self._settings = settings
        self._topics: tuple[str, ...] = ()
        self._member_id = ""
        self._who: Identity | None = None
        self._heard_as: Identity | None = None
        self._is_called = True
        self._led: dict[str, int] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._beating: threading.Thread | None = None
        self._polled_at = time.monotonic()

    # ------------------------------------------------------------------ the consumer's thread

    @property
    def identity(self) -> Identity | None:
        """Who this member is in the generation of its share; None while it has none."""
        return self._who

    @property
    def is_called(self) -> bool:
        """Whether the next `drive` has something to do."""
        return self._is_called

    @property
    def must_give_up(self) -> bool:
        """Whether the consumer has to give up what it has before the next `drive`."""
        lasts = self._settings.is_cooperative and self._who is not None
        return self._is_called and not lasts

    def subscribe(self, topics: Iterable[str]) -> None:
        """Names the topics to share in, of which nothing is had; the next `drive` joins for them.

        Without any, the membership ends.
        """
        self._topics = tuple(sorted(set(topics)))
        if not self._topics:
            self._leave()
        self.rejoin()

    def rejoin(self) -> None:
        """Lets the next `drive` join again."""
        with self._lock:
            self._is_called = True

    def note_poll(self) -> None:
        """Notes that the program is there and asks for records."""
        self._polled_at = time.monotonic()

    def drive(self, wait_ms: int, owned: Share) -> Share | None:
        """Goes on towards a share for up to a time; returns it when there is a new one.

        `owned` is what the consumer has kept. Raises Fenced when another consumer has taken this
        one's `group.instance.id`.
        """
        if not self._is_called or not self._topics:
            return None
        deadline = time.monotonic() + wait_ms / 1000
        while not (owned and self._who is None):  # what is lost is given up first
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            joined = self._store.join_group(self._group, self._request(owned), wait_ms=left_ms)
            if joined.refusal is None:
                share = self._sync(joined, max(0, int((deadline - time.monotonic()) * 1000)))
                if share is not None:
                    return share
            else:
                self._refused(joined.refusal, joined.member_id)
            if time.monotonic() >= deadline and joined.refusal is not Refusal.MEMBER_ID_REQUIRED:
                return None
        return None

    def _request(self, owned: Share) -> JoinRequest:
        settings = self._settings
        asked = Subscription(self._topics)
        if owned and self._who is not None:
            asked = Subscription(self._topics, owned, self._who.generation)
        metadata = consumer_protocol.encode_subscription(asked)
        return JoinRequest(
            consumer_protocol.PROTOCOL_TYPE,
            tuple((name, metadata) for name in settings.assignors),
            self._member_id,
            settings.instance_id,
            settings.client_id,
            "",
            settings.session_timeout_ms,
            settings.max_poll_interval_ms,
            must_know_id=settings.instance_id is None,
            may_skip=True,
        )

    def _refused(self, refusal: Refusal, member_id: str) -> None:
        """Draws the consequence of a refusal; raises where joining again is of no use."""
        if refusal is Refusal.MEMBER_ID_REQUIRED:
            self._member_id = member_id
        elif refusal is Refusal.UNKNOWN_MEMBER_ID:
            self._member_id = ""
            self._lose()
        elif refusal is Refusal.FENCED_INSTANCE_ID:
            self._lose()
            raise Fenced(
                f"another consumer is member {self._settings.instance_id!r} of group"
                f" {self._group!r} now; each needs a group.instance.id of its own"
            )
        elif refusal is Refusal.REBALANCE_IN_PROGRESS:
            self._member_id = member_id or self._member_id
        else:
            raise InvalidRequest(f"group {self._group!r} refuses this consumer: {refusal.name}")

    def _sync(self, joined: Joined, wait_ms: int) -> Share | None:
        self._member_id = joined.member_id
        who = Identity(joined.member_id, joined.generation, self._settings.instance_id)
        with self._lock:
            self._heard_as = who
        led, shares = self._lead(joined)
        assigned = self._store.sync_group(self._group, who, shares, wait_ms=wait_ms)
        if assigned.refusal is not None:
            if assigned.refusal is not Refusal.ILLEGAL_GENERATION:  # the next join tells
                self._refused(assigned.refusal, "")
            return None
        return self._settle(who, led, assigned)

    def _settle(self, who: Identity, led: dict[str, int] | None, assigned: Assigned) -> Share:
        share = consumer_protocol.decode_assignment(assigned.assignment)
        with self._lock:
            self._who, self._led, self._is_called = who, led, False
            if self._beating is None:
                self._beating = threading.Thread(
                    target=self._beat, name="lamina-heartbeat", daemon=True
                )
                self._beating.start()
        return share

    def _lead(self, joined: Joined) -> tuple[dict[str, int] | None, Mapping[str, bytes]]:
        """Shares the topics out, if that is this member's task; returns what it went by."""
        if joined.leader != joined.member_id:
            return None, {}
        wanted = {
            each.member_id: consumer_protocol.decode_subscription(each.metadata)
            for each in joined.members
        }
        counts = self._count_partitions({name for each in wanted.values() for name in each.topics})
        if joined.skip_assignment or joined.protocol not in ASSIGNORS:
            return counts, {}
        shares = ASSIGNORS[joined.protocol].assign(wanted, counts)
        return counts, {
            member: consumer_protocol.encode_assignment(share) for member, share in shares.items()
        }

    def _count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        found = {}
        for topic in topics:
            try:
                found[topic] = self._store.format_of(topic)[1]
            except UnknownTopic:
                found[topic] = 0
        return found

    def leave(self) -> None:
        """Ends the membership; its share goes to the others at once."""
        self._over.set()
        with self._lock:
            beating, self._beating = self._beating, None
        if beating is not None and beating is not threading.current_thread():
            beating.join()
        self._leave()

    def _leave(self) -> None:
        self._lose()
        if self._member_id and self._settings.instance_id is None:
            # A static member keeps its place: it is expected back before its session ends.
            self._store.leave_group(self._group, self._member_id)
            self._member_id = ""

    def _lose(self) -> None:
        """Notes that the share is lost: others may have it."""
        with self._lock:
            self._who = self._heard_as = self._led = None
            self._is_called = True

    # ------------------------------------------------------------------ the heartbeat's thread

    def _beat(self) -> None:
        checked_at = time.monotonic()
        while not self._over.wait(self._settings.heartbeat_interval_ms / 1000):
            with self._lock:
                who, led = self._heard_as, self._led
            if who is None:
                continue
            try:
                refusal = self._store.heartbeat(self._group, who)
                if refusal is not Refusal.UNKNOWN_MEMBER_ID and self._is_away():
                    self._store.leave_group(self._group, who.member_id)
                    refusal = Refusal.UNKNOWN_MEMBER_ID
                if led is not None and time.monotonic() - checked_at > PARTITIONS_CHECKED_S:
                    checked_at = time.monotonic()
                    if refusal is None and self._count_partitions(led) != led:
                        refusal = Refusal.REBALANCE_IN_PROGRESS
            except Closed:
                return
            except LaminaError:
                continue  # the session lasts for several of these
            if refusal is not None:
                self._hear(who, refusal)

    def _is_away(self) -> bool:
        return time.monotonic() - self._polled_at > self._settings.max_poll_interval_ms / 1000

    def _hear(self, who: Identity, refusal: Refusal) -> None:
        """Draws the consequence of a heartbeat's refusal, unless it has come too late to matter."""
        with self._lock:
            if self._heard_as != who:
                return
            is_joining = self._is_called and refusal is Refusal.ILLEGAL_GENERATION
            self._is_called = True
            if refusal is not Refusal.REBALANCE_IN_PROGRESS and not is_joining:
                self._who = self._heard_as = self._led = None
