"""A store is composed of parts: calls are handed on, and only the face stands above them."""

from __future__ import annotations

import inspect

import pytest

import lamina
from lamina.api import StoreApi
from lamina.store.parts import answered_by


class Part:
    """A part that answers calls."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def times(self, number: int, *, plus: int = 0) -> int:
        """Multiplies."""
        return number * self._factor + plus


class Whole:
    """What has a part, and later another one."""

    def __init__(self, factor: int) -> None:
        self._part = Part(factor)

    times = answered_by("_part", Part.times)


def test_a_call_is_answered_by_the_part_that_the_store_has_now() -> None:
    whole = Whole(2)
    assert whole.times(5, plus=1) == 11
    whole._part = Part(3)
    assert whole.times(5) == 15


def test_a_call_has_the_signature_and_the_words_of_its_part() -> None:
    assert inspect.signature(Whole.times) == inspect.signature(Part.times)
    assert Whole.times.__doc__ == "Multiplies."


def test_an_argument_that_the_part_does_not_take_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Whole(2).times(5, minus=1)


@pytest.mark.parametrize("kind", [lamina.Store, lamina.ReadOnlyStore, lamina.ArchiveStore])
def test_no_kind_of_store_is_made_of_base_classes(kind: type[StoreApi]) -> None:
    assert kind.__bases__ == (StoreApi,)
