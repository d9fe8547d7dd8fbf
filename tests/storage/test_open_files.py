"""How many files stay open: those that nobody used let go first, unsynced ones never."""

from __future__ import annotations

from lamina.storage.open_files import OPEN_FILES, OpenFiles


class Owner:
    """Keeps a file, which it lets go of unless it has to keep it."""

    def __init__(self, name: str, *, used: bool = False, keeps: bool = False) -> None:
        self.name = name
        self.used = used
        self.keeps = keeps
        self.is_open = True

    def let_go(self) -> bool:
        self.is_open = self.keeps
        return not self.keeps


def entered(kept: OpenFiles, *owners: Owner) -> list[str]:
    """Enters owners in turn; returns which of them are still open."""
    for each in owners:
        kept.enter(each)
    return [each.name for each in owners if each.is_open]


def test_up_to_the_limit_all_stay_open() -> None:
    kept = OpenFiles(3)
    owners = [Owner(name) for name in "abc"]
    assert entered(kept, *owners) == ["a", "b", "c"]
    assert len(kept) == 3
    assert OpenFiles().limit == OPEN_FILES


def test_beyond_it_those_that_entered_first_let_go() -> None:
    kept = OpenFiles(3)
    assert entered(kept, *map(Owner, "abcde")) == ["c", "d", "e"]
    assert len(kept) <= 3


def test_an_owner_that_enters_again_is_the_newest() -> None:
    kept = OpenFiles(2)
    a, b, c = map(Owner, "abc")
    assert entered(kept, a, b, a, c) == ["a", "a", "c"]
    assert not b.is_open
    assert len(kept) == 2


def test_whoever_was_used_has_another_chance() -> None:
    kept = OpenFiles(2)
    a, b, c, d = Owner("a", used=True), *map(Owner, "bcd")
    assert entered(kept, a, b, c) == ["a", "c"]
    assert not a.used, "until the next look"
    assert entered(kept, d) == ["d"]
    assert [each.is_open for each in (a, b, c)] == [True, False, False]


def test_if_all_were_used_those_that_entered_first_let_go() -> None:
    kept = OpenFiles(2)
    owners = [Owner(name, used=True) for name in "abc"]
    assert entered(kept, *owners) == ["b", "c"]
    assert [each.used for each in owners] == [False, False, True]
    assert len(kept) == 2


def test_whoever_has_to_keep_its_file_may_pass_the_limit() -> None:
    kept = OpenFiles(2)
    owners = [Owner(name, keeps=True) for name in "abc"]
    last = Owner("d")
    assert entered(kept, *owners, last) == ["a", "b", "c", "d"]
    assert len(kept) == 4
    owners[1].keeps = False
    e = Owner("e")
    kept.enter(e)
    assert (owners[1].is_open, last.is_open, e.is_open) == (False, False, True)
    assert len(kept) == 3


def test_the_newest_never_lets_go() -> None:
    kept = OpenFiles(0)
    a, b = map(Owner, "ab")
    kept.enter(a)
    assert a.is_open
    kept.enter(b)
    assert (a.is_open, b.is_open) == (False, True)


def test_an_owner_that_is_gone_is_forgotten() -> None:
    kept = OpenFiles(2)
    owners = [Owner("a"), Owner("b")]
    entered(kept, *owners)
    del owners[0]
    assert len(kept) == 1
    assert entered(kept, Owner("c")) == ["c"]
    assert owners[0].is_open


def test_all_let_go_that_can_when_nobody_needs_them() -> None:
    kept = OpenFiles(5)
    a, b = Owner("a", used=True), Owner("b", keeps=True)
    entered(kept, a, b)
    kept.release()
    assert (a.is_open, b.is_open, len(kept)) == (False, True, 1)
