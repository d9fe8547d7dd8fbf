"""What is no JSON of ours is refused, however many parsers would take it."""

from __future__ import annotations

import zlib

import pytest

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

SEAL = strict_json.SEAL.encode()


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(CorruptData, match="not a JSON number"):
        strict_json.parse(b'{"version": %s}' % name.encode())


def test_a_field_that_is_given_twice_is_refused() -> None:
    with pytest.raises(CorruptData, match="twice"):
        strict_json.parse(b'{"version": 1, "version": 2}')


def test_a_number_beyond_all_others_is_refused_even_under_a_seal_that_fits() -> None:
    sealed = zlib.crc32(b'{"kept":Infinity}')
    document = strict_json.parse(b'{"kept": 1e999, "%s": "%08x"}' % (SEAL, sealed))
    with pytest.raises(CorruptData, match="cannot have been given"):
        strict_json.check_seal(document)
