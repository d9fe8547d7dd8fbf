"""The errors: their tree is the one that is drawn, and each survives a move between processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor

import pytest

from lamina import errors
from lamina.errors import (
    CorruptData,
    LaminaError,
    NewerFormat,
    RecordsMissing,
    SchemaError,
    TopicExists,
    UnknownTopic,
)


def classes(base: type[LaminaError] = LaminaError) -> list[type[LaminaError]]:
    ours = [kind for kind in base.__subclasses__() if kind.__module__ == errors.__name__]
    return [base, *(each for kind in ours for each in classes(kind))]


def tree(base: type[LaminaError]) -> dict[str, str]:
    """Each class's name and its parent's."""
    return {kind.__name__: kind.__mro__[1].__name__ for kind in classes(base)}


def drawn_tree() -> dict[str, str]:
    """The same, read from the drawing in the docstring by its indentation."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = [(-1, "Exception")]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)( {2,}|$)", line)
        if match is None:
            continue
        depth = len(match[1])
        while above[-1][0] >= depth:
            above.pop()
        found[match[2]] = above[-1][1]
        above.append((depth, match[2]))
    return found


def example(kind: type[LaminaError]) -> LaminaError:
    """An error with every attribute set."""
    if issubclass(kind, RecordsMissing):
        made = kind("gone", first=3, end=9, reason="lost")
        made.path = "/data/x.log"
        return made
    if issubclass(kind, CorruptData):
        return kind("bad", path="/data/x.log", position=7, expected="1", found="2")
    if issubclass(kind, UnknownTopic):
        return kind("no such topic", ("orders", "clicks"))
    if issubclass(kind, SchemaError):
        return kind("no such field", field="address.city")
    if issubclass(kind, TopicExists):
        return kind("it is there", topic="orders", difference="partitions 1, not 2")
    return kind("it went wrong", 5)


@pytest.mark.parametrize("kind", classes())
def test_every_error_has_the_exit_code_of_its_family(kind: type[LaminaError]) -> None:
    families = [family for family in errors.EXIT_CODES if issubclass(kind, family)]
    if kind is LaminaError:
        assert families == []
        assert errors.exit_code(kind("x")) == 1
    else:
        assert len(families) == 1, "a class belongs to one family"
        assert errors.exit_code(example(kind)) == errors.EXIT_CODES[families[0]]


def test_the_families_are_the_children_of_the_base_and_no_code_means_two_things() -> None:
    assert set(errors.EXIT_CODES) == set(LaminaError.__subclasses__())
    codes = list(errors.EXIT_CODES.values())
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == tree(LaminaError)
    assert list(drawn_tree()) == list(tree(LaminaError)), "also in order"


def test_the_message_of_corrupt_data_says_where_and_what() -> None:
    error = CorruptData("bad checksum", path="/d/a.log", position=42, expected="aa", found="bb")
    assert str(error) == "/d/a.log: byte 42: bad checksum (expected aa, found bb)"
    assert str(CorruptData("bad", position=3)) == "byte 3: bad"
    assert str(CorruptData("bad", found="bb")) == "byte 0: bad (found bb)"
    assert str(CorruptData("bad", expected="aa")) == "byte 0: bad (expected aa)"


def test_the_message_of_missing_records_says_which_and_why() -> None:
    error = RecordsMissing("records are gone", first=3, end=9, reason="retention")
    assert str(error) == "records are gone: offsets 3 to 9 (retention)"
    assert str(error.at_path("/d/0")) == "/d/0: records are gone: offsets 3 to 9 (retention)"


@pytest.mark.parametrize("kind", [CorruptData, NewerFormat, RecordsMissing])
def test_naming_the_file_keeps_the_class_and_all_else(kind: type[CorruptData]) -> None:
    error = example(kind)
    assert isinstance(error, CorruptData)
    named = error.at_path("/other")
    assert type(named) is kind
    assert named.path == "/other"
    assert {**vars(named), "path": error.path} == vars(error)
    assert error.path == "/data/x.log", "the first one is not changed"


@pytest.mark.parametrize("kind", classes())
def test_every_error_is_the_same_after_pickling_and_copying(kind: type[LaminaError]) -> None:
    error = example(kind)
    error.add_note("seen by the writer")
    for again in (
        *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, 6)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(again) is kind
        assert again is not error
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def fail() -> None:
    raise RecordsMissing("gone", first=3, end=9, reason="lost")


def test_an_error_raised_in_another_process_arrives() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        caught = pool.submit(fail).exception()
    assert isinstance(caught, RecordsMissing)
    assert (caught.first, caught.end, caught.reason) == (3, 9, "lost")
