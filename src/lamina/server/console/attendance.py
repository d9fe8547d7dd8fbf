"""Who is there: the members of groups with what each of them reads, and connected Kafka clients.

Rules.
1. Members, of classic and of share groups, are told to keys that the name of their group belongs
   to, as by the Kafka door; of what they read, a key is told of the topics that are its own.
2. Who is connected is told to keys of all topics only: a connection belongs to no topic.
3. What a member says of itself is cut to a bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from lamina.api.memberships import MemberInfo
from lamina.groups.share_membership import ShareBeat
from lamina.server.console import asked
from lamina.server.console.looks import PAGE, View, page_about, page_of
from lamina.store.group_calls import committed_in
from lamina.wire.kafka.consumer_protocol import told_share

TEXT_MAX = 200
TOPICS_MAX, SPANS_MAX = 50, 50
"""Of so many topics a member's partitions are shown, and of each so many runs of them."""


def members(view: View) -> dict[str, Any]:
    """Lists the members of all groups, by group."""
    search = asked.text(view.given, "search", "").lower()
    coordinator = view.store.coordinator
    counted = [
        each
        for each in sorted(coordinator.headcounts() + coordinator.share.headcounts())
        if each.members and view.may_see(each.group) and search in each.group.lower()
    ]
    about = page_about(sum(each.members for each in counted), view.given)
    skipped, rows = about["page"] * PAGE, list[dict[str, Any]]()
    for each in counted:  # only groups of the page are described
        if skipped >= each.members:
            skipped -= each.members
            continue
        rows += _rows(view, each.group)[skipped:]
        skipped = 0
        if len(rows) >= PAGE:
            break
    return {"rows": rows[:PAGE], "groups": len(counted), **about}


def of_group(view: View, topic: str, group: str) -> list[dict[str, Any]]:
    """Lists the members of a group of a topic: of a share group, those that read the topic."""
    if not view.may_see(group):
        return []
    if committed_in(view.store.coordinator.offsets, topic, group):
        return _classic_rows(view, group)
    return _share_rows(view, group, topic)


def counts(view: View) -> Callable[[str, str], int | None]:
    """Returns a function that counts the members of a group of a topic.

    None stands for a group that needs none: a share group of Lamina's own clients.
    """
    coordinator = view.store.coordinator
    found = {each.group: each.members for each in coordinator.headcounts()}

    def count(topic: str, group: str) -> int | None:
        if not view.may_see(group):
            return None
        if committed_in(coordinator.offsets, topic, group):
            return found.get(group, 0)
        return (
            sum(topic in each.topics for each in coordinator.share.describe(group).members) or None
        )

    return count


def clients(view: View) -> dict[str, Any]:
    """Lists connected Kafka clients, the first to come first."""
    search = asked.text(view.given, "search", "").lower()
    everybody = [] if view.caller.prefix else view.kafka_clients()
    found = [
        each
        for each in everybody
        if search in f"{each.client_id} {each.software} {each.host} {each.key}".lower()
    ]
    shown, about = page_of(found, view.given)
    return {"rows": [asdict(each) for each in shown], **about}


def _rows(view: View, group: str) -> list[dict[str, Any]]:
    """A name stands for one kind of group, so one of the two is empty."""
    return _classic_rows(view, group) + _share_rows(view, group)


def _classic_rows(view: View, group: str) -> list[dict[str, Any]]:
    about = view.store.coordinator.describe(group)
    if about is None:
        return []
    head = {
        "group": group,
        "kind": "classic",
        "state": about.state,
        "assignor": about.protocol[:TEXT_MAX],
    }
    return [
        _row(view, head, each, told_share(about.protocol_type, each.assignment))
        for each in about.members
    ]


def _share_rows(view: View, group: str, topic: str | None = None) -> list[dict[str, Any]]:
    about = view.store.coordinator.share.describe(group)
    head = {"group": group, "kind": "share", "state": about.state, "assignor": ""}
    return [
        _row(view, head, each.about, each.share)
        for each in about.members
        if topic is None or topic in each.topics
    ]


def _row(
    view: View,
    head: Mapping[str, str],
    member: MemberInfo | ShareBeat,
    share: Mapping[str, Sequence[int]] | None,
) -> dict[str, Any]:
    instance = member.instance_id if isinstance(member, MemberInfo) else None
    covered = {topic: each for topic, each in (share or {}).items() if view.may_see(topic)}
    return {
        **head,
        "member": member.member_id[:TEXT_MAX],
        "instance": instance and instance[:TEXT_MAX],
        "client_id": member.client_id[:TEXT_MAX],
        "host": member.client_host.removeprefix("/")[:TEXT_MAX],
        "partitions": None if share is None else sum(map(len, covered.values())),
        "share": [
            {"topic": topic, "spans": _spans(numbers)}
            for topic, numbers in sorted(covered.items())[:TOPICS_MAX]
        ],
    }


def _spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Joins neighbours: partitions as pairs of the first and the last of each run."""
    ordered = sorted(set(numbers))
    ends = [low for low, high in pairwise(ordered) if high != low + 1] + ordered[-1:]
    starts = ordered[:1] + [high for low, high in pairwise(ordered) if high != low + 1]
    return list(zip(starts, ends, strict=True))[:SPANS_MAX]
