"""Kernels before and after the compiler is loaded: what they mean, and what a call then costs."""

from __future__ import annotations

from pathlib import Path

from tests.formats.test_first_use import on_a_new_machine

AFTERWARDS = """
import sys
from lamina.formats.kernels import call_size, crc, declare
from lamina.formats.kernels.binary import address_of, peek_u8
from lamina.store import store

early, held = crc._crc32c_of, peek_u8
assert isinstance(early, declare.Declared) and isinstance(held, declare.Declared)
for _ in range(call_size.EARLY_ROWS):
    assert crc.crc32c_of(b"123456789") == 0xE3069283
assert "numba" not in sys.modules
assert crc.crc32c_of(b"123456789") == 0xE3069283, "there is no allowance left"
assert "numba" in sys.modules
left = [
    f"{name}.{each}"
    for name, module in sys.modules.items()
    if name.startswith("lamina.")
    for each, value in vars(module).items()
    if type(value) is declare.Declared
]
assert not left, left
assert early is not crc._crc32c_of and early(crc.as_bytes(b"123456789")) == 0xE3069283

@declare.kernel
def first(data):  # the names that it uses were declared before the compiler was loaded
    return held(address_of(data))

print(first(crc.as_bytes(b"a")))
"""


def test_what_was_declared_is_made_and_put_in_its_place(tmp_path: Path) -> None:
    assert on_a_new_machine(tmp_path / "new", AFTERWARDS) == "97\n"
