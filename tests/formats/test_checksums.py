"""Checksums against other code, the instruction against the tables, and the kernel cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pytest
import xxhash

from lamina.formats.kernels import compile as compiling
from lamina.formats.kernels import crc
from lamina.formats.kernels.binary import address_of, as_bytes
from lamina.formats.kernels.declare import kernel
from lamina.formats.kernels.xxh3 import xxh3, xxh3_of

Checksum: TypeAlias = Callable[[Any, int, int], Any]


@kernel
def crc32_by_instruction(data: Any, start: int, length: int) -> Any:
    return crc.crc32_instruction(address_of(data) + start, length)


@kernel
def crc32_by_tables(data: Any, start: int, length: int) -> Any:
    return crc.crc32_portable(address_of(data) + start, length)


@kernel
def crc32_chosen(data: Any, start: int, length: int) -> Any:
    return crc.crc32(address_of(data) + start, length)


@kernel
def crc32c_by_instruction(data: Any, start: int, length: int) -> Any:
    return crc.crc32c_instruction(address_of(data) + start, length)


@kernel
def crc32c_by_tables(data: Any, start: int, length: int) -> Any:
    return crc.crc32c_portable(address_of(data) + start, length)


@kernel
def crc32c_chosen(data: Any, start: int, length: int) -> Any:
    return crc.crc32c(address_of(data) + start, length)


@kernel
def xxh3_seeded(data: Any, start: int, length: int, seed: Any) -> Any:
    return xxh3(address_of(data) + start, length, seed)


RAW = np.random.default_rng(20_240_601).integers(0, 256, (1 << 20) + 64, np.uint8).tobytes()
DATA = as_bytes(RAW)
LENGTHS = range(1101)
LARGE = (64 << 10, (64 << 10) + 17, (1 << 20) + 3)
SEEDS = (0, 1, 8, (1 << 64) - 1)

carryless = pytest.mark.skipif(
    not crc.has_carryless_multiply(), reason="the processor has no carry-less multiply"
)
sse42 = pytest.mark.skipif(
    not crc.has_crc32c_instruction(), reason="the processor has no CRC-32C instruction"
)


def slices() -> list[tuple[int, int]]:
    """Every length at a changing alignment, the short ones at each, and a few large ones."""
    every = [(length * 7 % 16, length) for length in LENGTHS]
    short = [(start, length) for start in range(16) for length in range(0, 260)]
    return every + short + [(start, length) for start in (0, 1, 13) for length in LARGE]


def check(ours: Checksum, theirs: Callable[[bytes], int]) -> None:
    for start, length in slices():
        expected = theirs(RAW[start : start + length])
        assert ours(DATA, start, length) == expected, f"{length} bytes from {start}"


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param(crc32_by_instruction, marks=carryless, id="instruction"),
        pytest.param(crc32_by_tables, id="tables"),
        pytest.param(crc32_chosen, id="chosen"),
    ],
)
def test_crc32_is_that_of_zlib(ours: Checksum) -> None:
    check(ours, zlib.crc32)


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param(crc32c_by_instruction, marks=sse42, id="instruction"),
        pytest.param(crc32c_by_tables, id="tables"),
        pytest.param(crc32c_chosen, id="chosen"),
    ],
)
def test_crc32c_is_that_of_google(ours: Checksum) -> None:
    check(ours, google_crc32c.value)


@pytest.mark.parametrize(
    ("instruction", "tables"),
    [
        pytest.param(crc32_by_instruction, crc32_by_tables, marks=carryless, id="crc32"),
        pytest.param(crc32c_by_instruction, crc32c_by_tables, marks=sse42, id="crc32c"),
    ],
)
def test_the_instruction_and_the_tables_agree(instruction: Checksum, tables: Checksum) -> None:
    for filler in (b"\x00", b"\xff", b"\x01\x5e\x0b\xb1"):
        data = as_bytes(filler * 1200)
        for length in LENGTHS:
            assert instruction(data, length % 5, length) == tables(data, length % 5, length)


def test_a_checksum_does_not_depend_on_the_bytes_around() -> None:
    for length in (0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 100, 127, 128, 129, 240, 241, 1024):
        for ours in (crc32_chosen, crc32c_chosen):
            values = set()
            for around in (0x00, 0xFF):
                padded = bytes([around]) * 32 + RAW[:length] + bytes([around]) * 32
                values.add(ours(as_bytes(padded), 32, length))
            assert len(values) == 1


def test_known_values() -> None:
    digits = as_bytes(b"123456789")
    assert crc32_chosen(digits, 0, 9) == 0xCBF43926
    assert crc32c_chosen(digits, 0, 9) == 0xE3069283
    assert crc.crc32c_of(b"123456789") == 0xE3069283
    assert xxh3_of(b"") == 0x2D06800538D394C2


@pytest.mark.parametrize("seed", SEEDS)
def test_xxh3_is_that_of_xxhash(seed: int) -> None:
    for start, length in slices():
        expected = xxhash.xxh3_64_intdigest(RAW[start : start + length], seed=seed)
        found = int(xxh3_seeded(DATA, start, length, np.uint64(seed)))
        assert found == expected, f"{length} bytes from {start}"


def test_python_functions_take_any_buffer() -> None:
    buffers: list[Any] = [RAW[:100], bytearray(RAW[:100]), memoryview(RAW)[:100], DATA[:100]]
    for buffer in buffers:
        assert crc.crc32c_of(buffer) == google_crc32c.value(RAW[:100])
        assert xxh3_of(buffer, 3) == xxhash.xxh3_64_intdigest(RAW[:100], seed=3)


# ---------------------------------------------------------------- other processors

ON_A_PLAIN_PROCESSOR = """
import json, sys
from lamina.formats.kernels import crc
from lamina.formats.frame import log
from lamina.formats.kernels.first_use import compiled_first
from lamina.records import prepare
patience = compiled_first()
patience.__enter__()
golden = open(sys.argv[1], "rb").read()
rows = [
    {"timestamp": 1_700_000_000_000, "key": None, "value": b"\\x01\\x02\\x03"},
    {"timestamp": 1_700_000_000_001, "key": b"\\x09", "value": b"\\x04\\x05"},
]
written = log.encode(prepare(rows, "frame", now_ms=0), 0)[0].tobytes()
damaged = bytearray(golden)
damaged[33] ^= 1
print(json.dumps({
    "portable": [crc.crc32 is crc.crc32_portable, crc.crc32c is crc.crc32c_portable],
    "written": written.hex(),
    "positions": log.scan(golden).positions.tolist(),
    "damaged": log.scan(bytes(damaged)).stop.name,
    "crc32c": crc.crc32c_of(b"123456789"),
}))
"""


def test_a_processor_without_the_instructions_gives_the_same_bytes(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "frame-log.bin"
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "LAMINA_KERNEL_CACHE": str(tmp_path)}
    environment.pop("NUMBA_CPU_FEATURES", None)
    result = subprocess.run(
        [sys.executable, "-c", ON_A_PLAIN_PROCESSOR, str(golden)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "portable": [True, True],
        "written": golden.read_bytes().hex(),
        "positions": [0, 43],
        "damaged": "BAD_CHECKSUM",
        "crc32c": 0xE3069283,
    }
    assert any(tmp_path.rglob("frame.log._scan-*")), "nothing was cached where it should be"


# ---------------------------------------------------------------- the cache of compiled kernels


def copy_of_package(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "top.py").write_text("x = 1\n")
    (folder / "inner" / "helper.py").write_text("y = 1\n")
    (folder / "notes.txt").write_text("not a source")
    return folder


def test_the_digest_changes_with_any_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copy_of_package(tmp_path / "package")
    monkeypatch.setattr(compiling, "files", lambda name: package)
    digest = compiling.source_digest()
    assert compiling.source_digest() == digest
    (package / "notes.txt").write_text("still not a source")
    assert compiling.source_digest() == digest
    (package / "inner" / "helper.py").write_text("y = 2\n")
    assert compiling.source_digest() != digest


def test_kernels_are_kept_under_the_digest_of_the_sources_and_the_name_of_the_processor() -> None:
    crc32_by_tables(DATA, 0, 10)
    dispatcher: Any = crc32_by_tables
    signature = dispatcher.signatures[0]
    codegen = dispatcher.targetctx.codegen()
    assert Path(str(compiling.CACHE.directory())).name == compiling.source_digest()[:32]
    name = dispatcher._cache._name(signature, codegen)
    assert compiling.CACHE.load(name) is not None
    other = type("Other", (), {"magic_tuple": lambda _: ("another processor",)})()
    assert dispatcher._cache._name(signature, other) != name
    assert dispatcher._cache._name(signature[:1], codegen) != name
