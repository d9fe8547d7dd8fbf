"""The manifest: what is read is what was written, in full, or nothing."""

from __future__ import annotations

import dataclasses
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import manifest
from lamina.formats.keratin.manifest import Manifest, SealedSegment
from tests.formats.test_keratin_golden import MANIFEST, crc, golden
from tests.support.contract import grows_at_most, mutate

DATA = golden("keratin-manifest.bin")
SIZES = st.integers(0, (1 << 63) - 1)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    bounds = sorted(draw(st.sets(st.integers(0, 1 << 62), min_size=2, max_size=20)))
    *pairs, active, end = bounds if len(bounds) % 2 == 0 else bounds[1:]
    segments = tuple(
        SealedSegment(base, last, draw(SIZES), draw(SIZES))
        for base, last in zip(pairs[::2], pairs[1::2], strict=True)
    )
    return Manifest(
        created_ms=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        segment_bytes_max=draw(SIZES),
        index_stride_bytes=draw(st.integers(0, (1 << 32) - 1)),
        open_segments_max=draw(st.integers(0, (1 << 16) - 1)),
        active_base_offset=active,
        next_offset=end,
        segments=segments,
    )


def sealed(payload: bytes) -> bytes:
    """A manifest with any payload and a checksum that is right."""
    return DATA[:16] + crc(payload) + payload


@settings(max_examples=150, deadline=None)
@given(manifests())
def test_any_manifest_comes_back_as_it_went_in(drawn: Manifest) -> None:
    data = manifest.encode(drawn)
    assert len(data) == 64 + 32 * len(drawn.segments)
    assert manifest.decode(data) == drawn


def test_every_prefix_and_every_longer_file_is_refused() -> None:
    for size in range(len(DATA)):
        with pytest.raises(CorruptData):
            manifest.decode(DATA[:size])
    for more in (b"\0", bytes(32)):
        with pytest.raises(CorruptData):
            manifest.decode(DATA + more)
        with pytest.raises(CorruptData, match="size does not fit"):
            manifest.decode(sealed(DATA[20:] + more))
    for size in range(20, len(DATA)):
        with pytest.raises(CorruptData):
            manifest.decode(sealed(DATA[20:size]))


def test_every_single_byte_change_is_refused_but_of_the_flags() -> None:
    for position in range(len(DATA)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(DATA)
            damaged[position] ^= change
            if 10 <= position < 12:
                assert manifest.decode(damaged) == MANIFEST
                continue
            is_header = 8 <= position < 10 or 12 <= position < 16
            newer = is_header and change == 0xFF  # one flipped bit is damage, more a newer version
            with pytest.raises(NewerFormat if newer else CorruptData):
                manifest.decode(damaged)


def test_a_count_of_segments_is_believed_only_if_the_bytes_are_there() -> None:
    for count in (0, 2, 0xFFFFFFFF):
        payload = bytearray(DATA[20:])
        payload[40:44] = struct.pack(">I", count)
        with pytest.raises(CorruptData, match="size does not fit"):
            manifest.decode(sealed(bytes(payload)))


def test_hostile_payloads_with_good_checksums_are_refused_or_consistent() -> None:
    drawn = random.Random(20_240_604)
    with grows_at_most(64 << 10):
        accepted = 0
        for round_number in range(2_000):
            payload = mutate(DATA[20:], drawn)
            hostile = sealed(payload) if round_number % 2 else mutate(DATA, drawn)
            try:
                found = manifest.decode(hostile)
            except CorruptData:
                continue
            accepted += 1
            manifest.encode(found)
        assert accepted > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"next_offset": 41},
        {"active_base_offset": 41},
        {"active_base_offset": -1, "next_offset": -1, "segments": ()},
        {"segment_bytes_max": -1},
        {"segments": (SealedSegment(5, 4, 0, 0),)},
        {"segments": (SealedSegment(0, 9, 0, 0), SealedSegment(9, 12, 0, 0))},
        {"segments": (SealedSegment(9, 12, 0, 0), SealedSegment(0, 8, 0, 0))},
        {"segments": (SealedSegment(-1, 8, 0, 0),)},
        {"segments": (SealedSegment(0, 8, -1, 0),)},
        {"segments": (SealedSegment(0, 8, 0, -1),)},
    ],
    ids=str,
)
def test_offsets_that_contradict_each_other_are_neither_written_nor_read(
    wrong: dict[str, object],
) -> None:
    contradictory = dataclasses.replace(MANIFEST, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r".+"):
        manifest.encode(contradictory)
    payload = struct.pack(
        ">qqIHHqqI",
        *(0, contradictory.segment_bytes_max, 0, 0, 0, contradictory.active_base_offset),
        *(contradictory.next_offset, len(contradictory.segments)),
    )
    for segment in contradictory.segments:
        payload += struct.pack(">qqqq", *dataclasses.astuple(segment))
    with pytest.raises(CorruptData):
        manifest.decode(sealed(payload))
