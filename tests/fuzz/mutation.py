"""Changes bytes the way disks, bugs and attackers do, by a seed: the same in CI and under atheris.

Kernels compiled by Numba show a fuzzer no coverage, and a checksum hides everything behind it. So a
change knows the structure: numbers are set to the extremes of their width, JSON documents are
changed as documents, and `Target.seal` gives changed bytes the checksums that fit them.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any, Literal

from tests.fuzz.target import Target

BYTES_MAX = 1 << 14
EXTREMES = [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000]
EXTREMES += [0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
NUMBERS: list[Any] = [*EXTREMES, -1, -(1 << 63), 1 << 70, 10**400, 0.5, -0.0, 1e308]
TEXTS = ["", "a", "\ud800", "\0", "../..", "²", "--5", "x" * 300, "Infinity", "\u202e", "."]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], {"": 0}, float("nan"), float("inf")]
ORDERS: tuple[Literal["little"], Literal["big"]] = ("little", "big")


def mutate(data: bytes, target: Target, drawn: random.Random) -> bytes:
    """Returns other bytes for a target, mostly with checksums that fit."""
    changed = None
    if target.is_text and drawn.random() < 0.7:
        changed = _other_document(data, drawn)
    if changed is None:
        changed = _other_bytes(data, target, drawn)
    return finish(changed, target, drawn)


def finish(data: bytes, target: Target, drawn: random.Random) -> bytes:
    """Cuts bytes to a size that keeps inputs fast, and seals most of them."""
    data = data[:BYTES_MAX]
    return data if drawn.random() < 0.2 else target.seal(data)


def _other_bytes(data: bytes, target: Target, drawn: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(drawn.choice((1, 1, 2, 3, 6))):
        at = drawn.randrange(len(out) + 1)
        match drawn.randrange(8):
            case 0:
                del out[at:]
            case 1 | 2:
                width = drawn.choice((1, 2, 4, 8))
                number = drawn.choice([*EXTREMES, len(out), at]) % (1 << (8 * width))
                out[at : at + width] = number.to_bytes(width, drawn.choice(ORDERS))
            case 3:
                out[at : at + 8] = drawn.randbytes(8)
            case 4:
                out[at:at] = drawn.randbytes(drawn.randrange(40))
            case 5:
                source = drawn.choice((bytes(out), *target.seeds()))
                begin = drawn.randrange(len(source) + 1)
                out[at:at] = source[begin : begin + drawn.randrange(120)]
            case 6:
                del out[at : at + drawn.randrange(1, 20)]
            case _ if at < len(out):
                out[at] ^= 1 << drawn.randrange(8)
    return bytes(out)


def _other_document(data: bytes, drawn: random.Random) -> bytes | None:
    """Changes a few places of a JSON document; a line before or bytes after it stay as they are."""
    before, after = b"", b""
    first, newline, rest = data.partition(b"\n")
    if data[:1] != b"{" and newline:
        before, data = first + newline, rest
    elif first[-1:] == b"}" and rest:
        data, after = first, newline + rest
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for _ in range(drawn.choice((1, 1, 2, 4))):
        document = _other_node(document, drawn, depth=0)
    try:
        return before + json.dumps(document).encode() + after
    except (ValueError, RecursionError):
        return None


def _other_node(node: Any, drawn: random.Random, depth: int) -> Any:
    if isinstance(node, dict | list) and node and depth < 8 and drawn.random() < 0.85:
        place = drawn.choice(list(node)) if isinstance(node, dict) else drawn.randrange(len(node))
        action = drawn.random()
        if action < 0.1:
            del node[place]
        elif action < 0.2 and isinstance(node, dict):
            node[drawn.choice((*TEXTS, place + "_"))] = copy.deepcopy(node[place])
        elif action < 0.2:
            node.insert(place, copy.deepcopy(node[place]))
        else:
            node[place] = _other_node(node[place], drawn, depth + 1)
        return node
    match drawn.randrange(6):
        case 0 | 1:
            return drawn.choice(NUMBERS)
        case 2:
            return drawn.choice(TEXTS)
        case 3:
            return copy.deepcopy(drawn.choice(OTHERS))
        case 4 if isinstance(node, int) and not isinstance(node, bool):
            return node + drawn.choice((-1, 1))
        case 5 if isinstance(node, str):
            return node + drawn.choice(TEXTS)
    return node
