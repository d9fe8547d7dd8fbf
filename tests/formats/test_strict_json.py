"""What is no JSON of ours is refused, however many parsers would take it."""

from __future__ import annotations

import pytest

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(CorruptData, match="no JSON"):
        strict_json.parse(b'{"version": %s}' % name.encode())


def test_a_field_that_is_given_twice_is_refused() -> None:
    with pytest.raises(CorruptData, match="twice"):
        strict_json.parse(b'{"version": 1, "version": 2}')
