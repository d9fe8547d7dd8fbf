"""The classic protocol, step by step: meetings, generations, static members, silence."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.api.memberships import Assigned, Identity, Joined, JoinRequest, Refusal
from lamina.groups.membership import NEW_MEMBER_MS, ClassicGroup, MembershipSettings

QUICK = MembershipSettings(session_timeout_min_ms=100, initial_delay_ms=50, members_max=4)
RANGE = (("range", b"about range"),)
BOTH = (("sticky", b"about sticky"), ("range", b"about range"))


class Rig:
    """A group, a clock, and everything that was answered, by the name a test gave the request."""

    def __init__(self, allowed: MembershipSettings = QUICK) -> None:
        numbers = itertools.count(1)
        self.group = ClassicGroup("g", allowed, new_id=lambda prefix: f"{prefix}-{next(numbers)}")
        self.now_ms = 1_000
        self.answers: dict[str, Any] = {}

    def join(self, name: str, **fields: Any) -> Any:
        fields = {"session_timeout_ms": 1_000, "rebalance_timeout_ms": 2_000} | fields
        fields = {"protocols": RANGE, "client_id": name} | fields
        request = JoinRequest("consumer", **fields)
        self.group.join(request, self._keep(name), self.now_ms)
        return self.deliver(name)

    def sync(
        self, name: str, who: Identity, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> Any:
        self.group.sync(who, assignments or {}, self._keep(name), self.now_ms, **more)
        return self.deliver(name)

    def _keep(self, name: str) -> Callable[[Any], None]:
        def keep(answer: Any) -> None:
            assert name not in self.answers, "a request is answered once"
            self.answers[name] = answer

        return keep

    def deliver(self, name: str | None = None) -> Any:
        for answer in self.group.take_answers():
            answer()
        return self.answers.get(name or "")

    def take(self, name: str) -> Any:
        self.deliver()
        return self.answers.pop(name)

    def later(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.group.advance(self.now_ms)
        self.deliver()

    def stable(self, *names: str, **fields: Any) -> dict[str, Identity]:
        """Has members join and sync; returns who they are."""
        for name in names:
            self.join(name, **fields)
        while self.group.state == "PreparingRebalance":
            self.later(QUICK.initial_delay_ms)
        joined = {name: self.take(name) for name in names}
        who = {name: Identity(each.member_id, each.generation) for name, each in joined.items()}
        leader = next(name for name, each in joined.items() if each.member_id == each.leader)
        shares = {each.member_id: f"share of {name}".encode() for name, each in joined.items()}
        for name in names:
            self.sync(name, who[name], shares if name == leader else None)
        for name in names:
            assert self.take(name).assignment == f"share of {name}".encode()
        assert self.group.state == "Stable"
        return who


def test_a_first_member_waits_for_others_who_start_with_it() -> None:
    rig = Rig()
    assert rig.join("a") is None
    rig.later(40)
    assert rig.join("b") is None
    rig.later(10)
    assert rig.answers == {}  # b came within the delay: it is waited for more
    rig.later(50)
    a, b = rig.take("a"), rig.take("b")
    assert (a.generation, a.leader, a.protocol) == (1, "a-1", "range")
    assert (b.generation, b.leader) == (1, "a-1")
    assert [each.member_id for each in a.members] == ["a-1", "b-2"]
    assert [each.metadata for each in a.members] == [b"about range"] * 2
    assert b.members == ()


def test_the_first_wait_ends_with_the_rebalance_timeout() -> None:
    rig = Rig(MembershipSettings(100, 10_000, 50, members_max=100))
    for number in range(50):
        rig.join(f"m{number}", rebalance_timeout_ms=400)
        rig.later(20)
        if rig.answers:
            break
    assert rig.now_ms == 1_400
    assert len(rig.answers) == 20


def test_everybody_syncs_and_gets_what_the_leader_assigned() -> None:
    rig = Rig()
    who = rig.stable("a", "b")
    assert rig.sync("again", who["b"]).assignment == b"share of b"
    assert rig.group.heartbeat(who["a"], rig.now_ms) is None


def test_a_follower_that_syncs_first_waits_for_the_leader() -> None:
    rig = Rig()
    rig.join("a"), rig.join("b")
    rig.later(50), rig.later(50)
    a, b = rig.take("a"), rig.take("b")
    assert rig.sync("b", Identity(b.member_id, 1)) is None
    assert rig.group.heartbeat(Identity(b.member_id, 1), rig.now_ms) is None
    assert rig.sync("a", Identity(a.member_id, 1), {a.member_id: b"x"}).assignment == b"x"
    assert rig.take("b") == Assigned(None, "consumer", "range", b"")


def test_a_member_without_an_id_is_given_one_first_if_it_understands_that() -> None:
    rig = Rig()
    given = rig.join("a", must_know_id=True)
    assert (given.refusal, given.member_id) == (Refusal.MEMBER_ID_REQUIRED, "a-1")
    assert rig.group.describe().members == ()
    del rig.answers["a"]
    assert rig.join("a", member_id="a-1", must_know_id=True) is None
    rig.later(50)
    assert rig.take("a").member_id == "a-1"


def test_an_id_that_is_never_used_holds_a_rebalance_up_until_its_session_ends() -> None:
    rig = Rig()
    who = rig.stable("a")
    rig.join("ghost", must_know_id=True)
    rig.join("b")
    rig.join("a", member_id=who["a"].member_id)
    assert "b" not in rig.answers
    rig.later(1_000)
    assert rig.take("b").generation == 2


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"session_timeout_ms": 99}, Refusal.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, Refusal.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("cooperative", b""),)}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, Refusal.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "instance_id": "i"}, Refusal.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_cannot_be_is_refused_at_once(fields: dict[str, Any], refusal: Refusal) -> None:
    rig = Rig()
    rig.stable("a")
    assert rig.join("x", **fields).refusal is refusal
    assert rig.group.state == "Stable"


def test_a_group_of_another_type_is_refused() -> None:
    rig = Rig()
    rig.stable("a")
    request = JoinRequest("connect", RANGE, session_timeout_ms=1_000)
    rig.group.join(request, rig._keep("x"), rig.now_ms)
    assert rig.deliver("x").refusal is Refusal.INCONSISTENT_GROUP_PROTOCOL


def test_a_lone_member_may_change_its_assignor() -> None:
    rig = Rig()
    who = rig.stable("a")
    joined = rig.join("a", member_id=who["a"].member_id, protocols=(("sticky", b""),))
    assert (joined.refusal, joined.protocol) == (None, "sticky")


def test_a_full_group_refuses_strangers_and_takes_its_own_back() -> None:
    rig = Rig()
    who = rig.stable("a", "b", "c", "d")
    assert rig.join("e").refusal is Refusal.GROUP_MAX_SIZE_REACHED
    assert rig.join("a", member_id=who["a"].member_id) is None  # the leader: a rebalance
    assert rig.group.state == "PreparingRebalance"


def test_the_assignor_that_most_prefer_among_the_common_ones_is_taken() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.join(name, protocols=BOTH)
    rig.join("c", protocols=BOTH[::-1])
    rig.later(50), rig.later(50)
    assert {rig.take(name).protocol for name in "abc"} == {"sticky"}
    rig = Rig()
    for name in ("a", "b"):
        rig.join(name, protocols=BOTH)
    rig.join("c", protocols=RANGE)
    rig.later(50), rig.later(50)
    assert {rig.take(name).protocol for name in "abc"} == {"range"}


def test_a_new_member_calls_everybody_to_a_meeting() -> None:
    rig = Rig()
    who = rig.stable("a", "b")
    rig.join("c")
    assert rig.group.heartbeat(who["a"], rig.now_ms) is Refusal.REBALANCE_IN_PROGRESS
    assert rig.group.may_commit(who["a"], rig.now_ms) is None  # it is about to come, and commits
    assert rig.sync("x", who["a"]).refusal is Refusal.REBALANCE_IN_PROGRESS
    rig.join("a", member_id=who["a"].member_id)
    rig.join("b", member_id=who["b"].member_id)
    assert [rig.take(name).generation for name in "abc"] == [2, 2, 2]
    assert rig.group.heartbeat(who["a"], rig.now_ms) is Refusal.ILLEGAL_GENERATION
    assert rig.group.may_commit(who["a"], rig.now_ms) is Refusal.ILLEGAL_GENERATION
    second = Identity(who["a"].member_id, 2)
    assert rig.group.may_commit(second, rig.now_ms) is Refusal.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_come_to_the_meeting_loses_its_place() -> None:
    rig = Rig()
    who = rig.stable("a", "b", session_timeout_ms=60_000)
    rig.join("c")
    rig.join("b", member_id=who["b"].member_id)
    rig.later(1_999)
    assert rig.answers == {}
    rig.later(1)
    b, c = rig.take("b"), rig.take("c")
    assert b.leader == c.leader == b.member_id  # the leader stayed away
    assert len(b.members) == 2
    assert rig.group.heartbeat(who["a"], rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID


def test_a_silent_member_expires_and_the_others_meet() -> None:
    rig = Rig()
    who = rig.stable("a", "b")
    rig.later(600)
    assert rig.group.heartbeat(who["a"], rig.now_ms) is None
    rig.later(400)
    assert rig.group.heartbeat(who["a"], rig.now_ms) is Refusal.REBALANCE_IN_PROGRESS
    assert rig.join("a", member_id=who["a"].member_id).generation == 2


def test_who_waits_for_an_answer_is_alive() -> None:
    rig = Rig()
    who = rig.stable("a", "b", rebalance_timeout_ms=10_000, session_timeout_ms=1_000)
    rig.join("a", member_id=who["a"].member_id)  # the leader asks for a meeting
    for _ in range(9):
        rig.later(900)
        assert rig.group.heartbeat(who["b"], rig.now_ms) is Refusal.REBALANCE_IN_PROGRESS
    assert "a" not in rig.answers
    rig.join("b", member_id=who["b"].member_id)
    assert rig.take("a").generation == 2


def test_a_first_join_whose_client_is_gone_does_not_wait_for_ever() -> None:
    rig = Rig()
    who = rig.stable("a", rebalance_timeout_ms=10 * NEW_MEMBER_MS)
    rig.join("gone", rebalance_timeout_ms=10 * NEW_MEMBER_MS)
    for _ in range(NEW_MEMBER_MS // 500 + 1):
        rig.later(500)
        rig.group.heartbeat(who["a"], rig.now_ms)
    assert rig.take("gone").refusal is Refusal.UNKNOWN_MEMBER_ID


def test_members_that_do_not_sync_are_removed() -> None:
    rig = Rig()
    rig.join("a", session_timeout_ms=60_000), rig.join("b", session_timeout_ms=60_000)
    rig.later(50), rig.later(50)
    rig.take("a")
    b = rig.take("b")
    rig.sync("b", Identity(b.member_id, 1))
    rig.later(2_000)
    assert rig.take("b").refusal is Refusal.REBALANCE_IN_PROGRESS
    assert rig.join("b", member_id=b.member_id, session_timeout_ms=60_000).leader == b.member_id


def test_leaving_calls_a_meeting_and_the_last_one_empties_the_group() -> None:
    rig = Rig()
    who = rig.stable("a", "b")
    assert rig.group.leave(who["a"].member_id, None, rig.now_ms) is None
    assert rig.group.leave(who["a"].member_id, None, rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID
    assert rig.join("b", member_id=who["b"].member_id).leader == who["b"].member_id
    assert rig.group.leave(who["b"].member_id, None, rig.now_ms) is None
    assert (rig.group.state, rig.group.is_empty) == ("Empty", True)
    assert rig.group.next_deadline_ms() is None


def test_an_empty_group_takes_commits_of_anybody_and_one_with_members_does_not() -> None:
    rig = Rig()
    nobody = Identity("", -1)
    assert rig.group.may_commit(nobody, rig.now_ms) is None
    who = rig.stable("a")
    assert rig.group.may_commit(nobody, rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID
    assert rig.group.may_commit(who["a"], rig.now_ms) is None
    assert rig.group.may_commit(Identity("x", 1), rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID


# ---------------------------------------------------------------------- static members


def static(rig: Rig) -> dict[str, Identity]:
    for name in ("a", "b"):
        rig.join(name, instance_id=f"i{name}")
    rig.later(50), rig.later(50)
    who = {}
    for name in ("a", "b"):
        joined = rig.take(name)
        who[name] = Identity(joined.member_id, 1, f"i{name}")
    shares = {each.member_id: name.encode() for name, each in who.items()}
    rig.sync("a", who["a"], shares), rig.sync("b", who["b"])
    rig.take("a"), rig.take("b")
    return who


def test_a_static_member_that_restarts_gets_its_share_back_without_a_meeting() -> None:
    rig = Rig()
    who = static(rig)
    joined = rig.join("b", instance_id="ib")
    assert (joined.refusal, joined.generation, joined.leader) == (None, 1, who["a"].member_id)
    assert joined.member_id != who["b"].member_id
    assert rig.group.state == "Stable"
    assert rig.sync("s", Identity(joined.member_id, 1, "ib")).assignment == b"b"
    assert rig.group.heartbeat(who["b"], rig.now_ms) is Refusal.FENCED_INSTANCE_ID
    assert rig.group.may_commit(who["b"], rig.now_ms) is Refusal.FENCED_INSTANCE_ID


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_that_restarts_assigns_nothing_again(may_skip: bool) -> None:
    rig = Rig()
    who = static(rig)
    joined = rig.join("a", instance_id="ia", may_skip=may_skip)
    assert (joined.refusal, joined.generation) == (None, 1)
    assert joined.skip_assignment is may_skip
    assert (joined.leader == joined.member_id) is may_skip
    assert bool(joined.members) is may_skip
    if not may_skip:
        assert joined.leader == who["a"].member_id
    assert rig.sync("s", Identity(joined.member_id, 1, "ia")).assignment == b"a"


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    rig = Rig()
    who = static(rig)
    rig.join("c")
    rig.join("a", member_id=who["a"].member_id, instance_id="ia")
    rig.later(999)
    rig.group.heartbeat(who["b"], rig.now_ms)
    rig.later(999)
    rig.group.heartbeat(who["b"], rig.now_ms)
    rig.later(2)  # the meeting's time is up: b did not come
    assert {each.instance_id for each in rig.take("a").members} == {"ia", "ib", None}
    again = Identity(who["b"].member_id, 2, "ib")
    assert rig.group.heartbeat(again, rig.now_ms) is None  # it is back, and has a share
    rig.later(1_000)
    assert rig.group.heartbeat(again, rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID


def test_two_with_one_instance_the_later_one_wins_while_both_wait() -> None:
    rig = Rig()
    rig.join("first", instance_id="i")
    rig.join("second", instance_id="i")
    assert rig.take("first").refusal is Refusal.FENCED_INSTANCE_ID
    rig.later(100)
    assert rig.take("second").refusal is None


def test_a_static_member_is_removed_by_its_instance() -> None:
    rig = Rig()
    who = static(rig)
    assert rig.group.leave("", "ib", rig.now_ms) is None
    assert rig.group.leave("", "ib", rig.now_ms) is Refusal.UNKNOWN_MEMBER_ID
    wrong = rig.group.leave(who["b"].member_id, "ia", rig.now_ms)
    assert wrong is Refusal.FENCED_INSTANCE_ID


def test_a_closed_group_refuses_whoever_waits() -> None:
    rig = Rig()
    rig.join("a")
    rig.group.close()
    assert rig.take("a").refusal is Refusal.UNKNOWN_MEMBER_ID
    assert rig.group.state == "Dead"


def test_members_are_described_as_far_as_the_group_agrees() -> None:
    rig = Rig()
    who = rig.stable("a")
    found = rig.group.describe()
    assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id) == (who["a"].member_id, "a")
    assert (member.metadata, member.assignment) == (b"about range", b"share of a")
    rig.join("b")
    assert [each.assignment for each in rig.group.describe().members] == [b"", b""]


# ---------------------------------------------------------------------- whatever happens


class Drawn(Rig):
    """Members that do what is drawn; at any moment at most one assignment counts."""

    def __init__(self) -> None:
        super().__init__(MembershipSettings(100, 10_000, 50, members_max=100))
        self.ids: dict[str, Identity] = {}
        self.asked = itertools.count()
        self.waiting: dict[str, str] = {}

    def do(self, name: str, action: str) -> None:
        who = self.ids.get(name)
        if action == "join":
            key = f"{name}-{next(self.asked)}"
            self.waiting[key] = name
            self.join(key, member_id=who.member_id if who else "", client_id=name)
        elif action == "sync" and who is not None:
            key = f"{name}-{next(self.asked)}"
            self.waiting[key] = name
            members = [each.member_id for each in self.group.describe().members]
            self.sync(key, who, {each: each.encode() for each in members})
        elif action == "heartbeat" and who is not None:
            self.group.heartbeat(who, self.now_ms)
        elif action == "leave" and who is not None:
            self.group.leave(who.member_id, None, self.now_ms)
            self.ids.pop(name)
        else:
            self.later(100)
        self.settle()

    def settle(self) -> None:
        self.deliver()
        for key in list(self.answers):
            answer, name = self.answers.pop(key), self.waiting.pop(key)
            if answer.refusal is Refusal.UNKNOWN_MEMBER_ID:
                self.ids.pop(name, None)
            elif isinstance(answer, Joined) and answer.refusal is None:
                self.ids[name] = Identity(answer.member_id, answer.generation)
            elif isinstance(answer, Assigned) and answer.refusal is None and name in self.ids:
                assert answer.assignment in (b"", self.ids[name].member_id.encode())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["join", "join", "sync", "sync", "heartbeat", "leave", "wait"]),
        ),
        max_size=60,
    )
)
def test_whatever_members_do_everybody_is_answered_and_the_group_comes_to_rest(
    steps: list[tuple[str, str]],
) -> None:
    rig = Drawn()
    for name, action in steps:
        rig.do(name, action)
    for _ in range(60):  # nobody speaks any more: sessions and meetings end by themselves
        rig.later(NEW_MEMBER_MS // 10)
        rig.settle()
    assert rig.waiting == {}
    assert (rig.group.state, rig.group.is_empty) == ("Empty", True)
    assert rig.group.next_deadline_ms() is None
