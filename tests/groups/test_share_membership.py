"""Members of share groups: epochs, shares, silence; the machine against a model of its rules."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.api.memberships import Refusal
from lamina.groups.share_membership import (
    JOINS,
    ShareAnswer,
    ShareBeat,
    ShareGroup,
    fair_shares,
)

COUNTS = {"a": 4, "b": 1, "none": 0}
SESSION_MS = 1000


def beat(
    group: ShareGroup,
    name: str,
    epoch: int = JOINS,
    topics: tuple[str, ...] | None = ("a",),
    *,
    now_ms: int = 0,
    counts: Callable[[str], int] = COUNTS.__getitem__,
) -> ShareAnswer:
    asked = ShareBeat(name, epoch, topics)
    return group.heartbeat(asked, counts, now_ms=now_ms, session_ms=SESSION_MS)


def test_a_member_learns_its_share_once() -> None:
    group = ShareGroup("g")
    joined = beat(group, "one")
    assert (joined.refusal, joined.epoch, joined.share) == (None, 1, {"a": (0, 1, 2, 3)})
    assert beat(group, "one", 1, None) == ShareAnswer(None, 1, None)


def test_everybody_learns_the_next_epoch_by_its_own_heartbeat() -> None:
    group = ShareGroup("g")
    beat(group, "one")
    assert beat(group, "two").share == {"a": (1, 3)}
    assert beat(group, "one", 1, None) == ShareAnswer(None, 2, {"a": (0, 2)})
    assert beat(group, "one", 1, None).share == {"a": (0, 2)}  # the answer was lost
    assert beat(group, "one", 2, None).share is None
    assert group.leave("two") is None
    assert beat(group, "one", 2, None) == ShareAnswer(None, 3, {"a": (0, 1, 2, 3)})


def test_epochs_of_others_are_fenced_and_strangers_are_unknown() -> None:
    group = ShareGroup("g")
    assert beat(group, "one", 3).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert group.leave("one") is Refusal.UNKNOWN_MEMBER_ID
    beat(group, "one")
    assert beat(group, "one", 7).refusal is Refusal.FENCED_MEMBER_EPOCH
    for name in ("two", "three"):
        beat(group, name)
        beat(group, "one", group.epoch - 1, None)
    assert beat(group, "one", 1).refusal is Refusal.FENCED_MEMBER_EPOCH
    assert beat(group, "one", JOINS).refusal is None


def test_a_full_group_refuses_new_members_only() -> None:
    group = ShareGroup("g", members_max=1)
    assert beat(group, "one").refusal is None
    assert beat(group, "two").refusal is Refusal.GROUP_MAX_SIZE_REACHED
    assert beat(group, "one").refusal is None


def test_a_topic_that_appears_or_grows_begins_an_epoch() -> None:
    group = ShareGroup("g")
    counts = {"a": 0}
    assert beat(group, "one", counts=counts.__getitem__).share == {}
    counts["a"] = 2
    grown = beat(group, "one", 1, None, counts=counts.__getitem__)
    assert (grown.epoch, grown.share) == (2, {"a": (0, 1)})


def test_whoever_is_silent_for_its_session_is_gone() -> None:
    group = ShareGroup("g")
    beat(group, "one", now_ms=0)
    beat(group, "two", now_ms=500)
    assert group.next_deadline_ms() == 1000
    assert group.advance(999) == []
    assert group.advance(1000) == ["one"]
    assert beat(group, "two", 2, None, now_ms=1000).share == {"a": (0, 1, 2, 3)}
    assert group.advance(5000) == ["two"]
    assert group.is_empty
    assert group.next_deadline_ms() is None


NAMES = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])
TOPICS = st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=3)


@given(
    st.dictionaries(NAMES, TOPICS, max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 12)),
)
def test_shares_are_whole_fair_and_only_of_what_was_subscribed(
    subscriptions: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    shares = fair_shares(subscriptions, counts)
    assert set(shares) == set(subscriptions)
    for topic, count in counts.items():
        readers = [name for name, topics in subscriptions.items() if topic in topics]
        given_out = [shares[name].get(topic, ()) for name in readers]
        assert all(topic not in shares[name] for name in set(subscriptions) - set(readers))
        if not readers:
            continue
        if count <= len(readers):
            assert all(sorted(each) == list(range(count)) for each in given_out)
        else:
            assert sorted(n for each in given_out for n in each) == list(range(count))
            sizes = [len(each) for each in given_out]
            assert max(sizes) - min(sizes) <= 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "beat", "old", "leave", "time"]),
        NAMES,
        st.tuples(TOPICS, st.integers(0, 600)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STEPS)
def test_any_history_keeps_the_rules(
    steps: list[tuple[str, str, tuple[frozenset[str], int]]],
) -> None:
    group, now_ms = ShareGroup("g", members_max=4), 0
    known: dict[str, tuple[int, int]] = {}  # epoch, deadline
    counts = {"a": 3, "b": 1, "c": 0}
    for kind, name, (topics, passed_ms) in steps:
        before = group.epoch
        if kind == "time":
            now_ms += passed_ms
            gone = group.advance(now_ms)
            assert sorted(gone) == sorted(n for n, (_, end) in known.items() if end <= now_ms)
            for each in gone:
                del known[each]
        elif kind == "leave":
            refusal = group.leave(name)
            assert (refusal is None) == (known.pop(name, None) is not None)
        else:
            epoch = JOINS if kind == "join" else known.get(name, (1, 0))[0]
            epoch += 1000 if kind == "old" else 0
            wanted = tuple(topics) if kind == "join" else None
            answer = beat(group, name, epoch, wanted, now_ms=now_ms, counts=counts.__getitem__)
            is_full = kind == "join" and name not in known and len(known) == 4
            is_known = kind == "join" or (kind == "beat" and name in known)
            assert (answer.refusal is None) == (is_known and not is_full)
            if answer.refusal is None:
                assert answer.epoch == group.epoch
                known[name] = (answer.epoch, now_ms + SESSION_MS)
        assert group.epoch >= before
        about = group.describe()
        assert {each.about.member_id for each in about.members} == set(known)
        assert group.next_deadline_ms() == min((end for _, end in known.values()), default=None)
