"""Copies of groups for the archive: one for each state that its life is known of, no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lamina.formats.documents import group_copy
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.groups.copying import Copies, is_of, state_of
from lamina.groups.state import State

ABOUT = TopicFile("t", "frame", 1, 1, 1_700_000_000_000)
LIFE = "00000000-0000-4000-8000-000000000001"


def share(life: Any = LIFE, *, is_poisoned: bool = False) -> Any:
    return SimpleNamespace(life=life, durable=State(7), is_poisoned=is_poisoned)


def test_a_copy_gives_back_the_state_and_whose_it_is() -> None:
    made = Copies(lambda: 5).of(ABOUT, 0, 7, {"g": [share()]})
    copy = group_copy.decode(made["g"])
    assert is_of(copy, ABOUT, 0, "g")
    assert not is_of(copy, ABOUT, 0, "h")
    assert state_of(copy).acked_until == 7


@pytest.mark.parametrize("unsure", [share(None), share(is_poisoned=True)])
def test_a_group_that_is_poisoned_or_has_no_life_yet_has_no_copy(unsure: Any) -> None:
    assert Copies(lambda: 5).of(ABOUT, 0, 7, {"g": [unsure]}) == {}


def test_while_a_reset_is_under_way_there_is_no_copy() -> None:
    lives = iter((LIFE, LIFE.replace("1", "2")))

    class Resetting:
        is_poisoned = False
        durable = State(7)

        @property
        def life(self) -> str:
            return next(lives)

    groups: Any = {"g": [Resetting()]}
    assert Copies(lambda: 5).of(ABOUT, 0, 7, groups) == {}


def test_of_a_topic_that_is_only_guessed_nothing_is_copied() -> None:
    guessed = TopicFile("t", "frame", 1, 1, UNKNOWN_MS)
    assert Copies(lambda: 5).of(guessed, 0, 7, {"g": [share()]}) == {}
