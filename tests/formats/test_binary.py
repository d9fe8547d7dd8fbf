"""Fixed runs of named fields: sizes, places and bytes in either order."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.formats.kernels.binary import Layout, as_bytes

KINDS = {
    "a": "u8",
    "b": "u16",
    "c": "u32",
    "d": "u64",
    "e": "i16",
    "f": "i32",
    "g": "i64",
    "h": "bytes[3]",
}
VALUES = {"a": 1, "b": 2, "c": 3, "d": 4, "e": -5, "f": -6, "g": -7, "h": b"xyz"}
LITTLE = "01 0200 03000000 0400000000000000 fbff faffffff f9ffffffffffffff 78797a"
BIG = "01 0002 00000003 0000000000000004 fffb fffffffa fffffffffffffff9 78797a"


@pytest.mark.parametrize(("order", "raw"), [("<", LITTLE), (">", BIG)])
def test_fields_lie_one_after_the_other_in_their_order(order: str, raw: str) -> None:
    layout = Layout(order, **KINDS)
    assert layout.size == 32
    assert [layout.at(name) for name in KINDS] == [0, 1, 3, 7, 15, 17, 21, 29]
    assert layout.is_big_endian is (order == ">")
    assert layout.pack(**VALUES) == bytes.fromhex(raw)
    assert layout.unpack(b"__" + bytes.fromhex(raw), 2) == VALUES
    assert layout.unpack(bytes.fromhex(raw)) == VALUES


def test_every_field_and_no_other_is_given() -> None:
    layout = Layout("<", a="u8", b="u8")
    for values in ({"a": 1}, {"a": 1, "b": 2, "c": 3}, {}):
        with pytest.raises(TypeError, match="expected, got"):
            layout.pack(**values)


def test_a_kind_that_is_none_is_refused() -> None:
    for kind in ("u9", "bytes[]", "bytes[x]", "bytes[3]!"):
        with pytest.raises(KeyError):
            Layout("<", a=kind)


def test_any_buffer_is_viewed_as_bytes_that_nobody_changes() -> None:
    view = as_bytes(bytearray(b"abc"))
    assert (view.dtype, view.tobytes()) == (np.dtype(np.uint8), b"abc")
    assert not view.flags.writeable
    assert as_bytes(np.array([1, 2], dtype="<u2")).tobytes() == b"\1\0\2\0"
