"""The judge of groups sees each anomaly, planted by itself into a history without any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lamina_torture.group_histories import Commit, Read, Share, judge_groups

FINAL = {0: {0: "a", 1: "b", 2: "c"}}
READS = [Read("g", 0, offset) for offset in range(3)]


def commit(offset: int, at: int, outcome: str = "ok") -> Commit:
    return Commit("g", 0, offset, at * 10, at * 10 + 5, outcome)  # type: ignore[arg-type]


def told(offset: int, at: int) -> Commit:
    return replace(commit(offset, at), is_told=True)


SOUND = [told(-1, 0), commit(1, 1), told(1, 2), commit(2, 3), told(2, 4)]
SHARES = [
    Share(1, "g", 1, "m1", (0, 1)),
    Share(1, "g", 2, "m1", (0,)),
    Share(1, "g", 2, "m2", (1,)),
    Share(2, "g", 1, "m3", (0, 1)),
    Share(1, "other", 1, "m2", (0, 1)),
]


def rules(
    commits: list[Commit], shares: list[Share] = SHARES, reads: list[Read] = READS
) -> set[str]:
    return {each.rule for each in judge_groups(commits, shares, reads, FINAL)}


def test_a_sound_history_has_none() -> None:
    assert rules(SOUND) == set()


def test_a_commit_without_an_answer_may_count_or_not() -> None:
    unanswered = replace(commit(3, 5, "info"), ended_ns=1000)
    assert rules([*SOUND, unanswered, told(2, 6)]) == set()
    assert rules([*SOUND, unanswered, told(3, 6)]) == set()


def test_commits_at_once_may_count_in_any_order() -> None:
    both = [commit(2, 1), replace(commit(1, 1), began_ns=12)]
    assert rules([*both, told(1, 3)]) == rules([*both, told(2, 3)]) == set()


def test_a_commit_may_go_back() -> None:
    assert rules([*SOUND, commit(1, 5), told(1, 6)]) == set()


@pytest.mark.parametrize(
    ("rule", "commits"),
    [
        ("lost commit", [*SOUND, told(1, 6)]),
        ("lost commit", [*SOUND, told(-1, 6)]),
        ("foreign commit", [*SOUND, told(3, 6)]),
        ("foreign commit", [*SOUND, commit(3, 5, "fail"), told(3, 6)]),
    ],
    ids=["an older one", "none", "nobody's", "a refused one"],
)
def test_a_wrong_offset_is_seen(rule: str, commits: list[Commit]) -> None:
    assert rules(commits) == {rule}


def test_a_commit_past_what_nobody_read_is_seen() -> None:
    assert rules(SOUND, reads=READS[1:]) == {"unread"}
    assert rules(SOUND, reads=READS[:2]) == set()


def test_a_partition_of_two_members_is_seen() -> None:
    assert rules(SOUND, [*SHARES, Share(1, "g", 2, "m3", (1,))]) == {"assigned twice"}
    assert rules(SOUND, [*SHARES, SHARES[1]]) == set(), "a member may be told twice"
