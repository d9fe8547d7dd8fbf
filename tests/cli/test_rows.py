"""The rows of a dump: sizes and checksum states, values that cannot pose as fields, small steps."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.errors import CorruptData
from lamina.formats.documents import tombstone
from lamina.formats.frame import log as frame_log
from lamina.formats.scan import is_prepared_space
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm import write as strm_write
from lamina.inspect import render
from lamina.inspect.kinds import kind_of
from lamina.inspect.object_files import STRM
from lamina.records import prepare
from tests.cli.tree import FRAME, KERATIN, KINDS, SEGMENT

ARCHIVE = "archive/data/orders/0/00000000000000000100.seg"


@pytest.mark.parametrize("name", KINDS)
def test_every_row_has_a_position_a_size_and_a_checksum_state(
    tree: Path, lamina: Any, name: str
) -> None:
    rows = lamina("dump", "--json", tree / name).rows
    described = [row for row in rows if "header" not in row]
    assert described
    for row in described:
        assert 0 <= row["position"] < len(KINDS[name][1])
        assert row["size"] >= 0
        assert row["checksum"] in ("ok", "none")


def test_the_rows_of_a_journal_and_an_index_lie_one_after_the_other(
    tree: Path, lamina: Any
) -> None:
    for name in ("groups/orders-0_billing.delta", f"{FRAME}.idx", f"{KERATIN}.idx",
                 f"{KERATIN}.tidx", f"{SEGMENT}.idx", "topics/f/0/producers.log"):  # fmt: skip
        rows = lamina("dump", "--json", tree / name).rows
        ends = [row["position"] + row["size"] for row in rows]
        assert [row["position"] for row in rows[1:]] == ends[:-1]
        assert ends[-1] == len(KINDS[name][1])


def test_the_size_of_a_compressed_record_is_that_of_its_contents(tree: Path, lamina: Any) -> None:
    _, *rows = lamina("dump", "--json", tree / ARCHIVE).rows
    sizes = [len(row["key"] or "") + len(row["value"] or "") for row in rows]
    assert [row["size"] for row in rows] == sizes
    assert all(row["position"] + row["block_size"] <= len(KINDS[ARCHIVE][1]) for row in rows)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"x key: admin checksum: bad", '"x key: admin checksum: bad"'),
        (b"a:b", '"a:b"'),
        (b'"quoted"', '"\\"quoted\\""'),
        (b"", '""'),
        (b"null", '"null"'),
        (b"{1}", '"{1}"'),
        (b"plain-word_1.0", "plain-word_1.0"),
        ("wörter".encode(), "wörter"),
    ],
)
def test_a_value_cannot_pose_as_a_field(tree: Path, lamina: Any, value: bytes, shown: str) -> None:
    data = frame_log.encode(prepare([value], "frame", now_ms=1), 0)[0].tobytes()
    (tree / f"{FRAME}.log").write_bytes(data)
    line = lamina("dump", tree / f"{FRAME}.log").out.splitlines()[1]
    assert line.endswith(f" key: null value: {shown}")


@pytest.mark.parametrize("change", ["a zeroed magic", "a grown length"])
def test_a_file_does_not_end_where_sound_records_follow(
    tree: Path, lamina: Any, change: str
) -> None:
    data = bytearray(frame_log.encode(prepare([b"v"] * 3, "frame", now_ms=1), 0)[0].tobytes())
    size = len(data) // 3
    if change == "a zeroed magic":
        data[size : size + 4] = bytes(4)
    else:
        data[size + 29] = 1
    (tree / f"{FRAME}.log").write_bytes(data)
    (finding,) = lamina("verify", "--json", tree / f"{FRAME}.log").rows
    assert (finding["position"], finding["resumes_at"]) == (size, 2 * size)
    assert "the file ends" not in finding["problem"]


def test_a_block_is_rendered_in_small_steps(tmp_path: Path) -> None:
    rows = [{"offset": number, "timestamp": 1, "value": b"v"} for number in range(100_000)]
    data = strm_write.encode(
        prepare(rows, "strm", now_ms=1), topic="t", partition=0, created_at_ms=1
    ).tobytes()
    list(STRM.dump("x", data, 99_999))
    tracemalloc.start()
    seen = sum(1 for _ in STRM.dump("x", data, 0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == 100_001
    assert peak < 20 << 20, f"{peak} bytes"
    assert render._ROWS_AT_ONCE <= 1000


def test_a_limit_leaves_later_blocks_alone(
    tmp_path: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(1)
    rows = [{"offset": n, "timestamp": 1, "value": noise.bytes(50_000)} for n in range(200)]
    path = tmp_path / "00000000000000000000.seg"
    path.write_bytes(
        strm_write.encode(
            prepare(rows, "strm", now_ms=1), topic="t", partition=0, created_at_ms=1
        ).tobytes()
    )
    read: list[int] = []
    read_block = strm_segment.read_block

    def counted(segment: Any, number: int, buffer: Any) -> Any:
        read.append(number)
        return read_block(segment, number, buffer)

    monkeypatch.setattr(strm_segment, "read_block", counted)
    first, *_ = lamina("dump", "--json", path, "--limit", 3).rows
    assert first["blocks"] > 1
    assert read == [0]


def test_a_damaged_spot_is_not_compared_with_zeros_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(np.ndarray[Any, Any]):
        seen = 0

        def any(self, *arguments: Any, **options: Any) -> Any:
            Counted.seen += self.size
            return np.asarray(self).any(*arguments, **options)

    data = np.zeros(4 << 20, dtype=np.uint8)
    data[7] = 1
    with monkeypatch.context() as patched:
        viewed = np.frombuffer(data, dtype=np.uint8).view(Counted)
        patched.setattr(np, "frombuffer", lambda given, dtype: viewed)
        assert not is_prepared_space(data, 0)
        assert Counted.seen <= 64
    assert is_prepared_space(data, 8)
    data[-1] = 1
    assert not is_prepared_space(data, 8)


# ---------------------------------------------------------------- every single-byte change


@pytest.mark.parametrize("suffix", ["idx", "timeidx"])
def test_every_byte_of_a_frame_index_is_compared_with_its_log(tree: Path, suffix: str) -> None:
    """The entries have no checksum: what protects them is that the log gives them anew."""
    path = tree / f"{FRAME}.{suffix}"
    data = path.read_bytes()
    kind = kind_of(str(path), data)
    assert kind is not None
    assert list(kind.verify(str(path), data)) == []
    for position in range(len(data)):
        for change in range(1, 256):
            changed = bytearray(data)
            changed[position] ^= change
            found = list(kind.verify(str(path), bytes(changed)))
            assert len(found) == 1, f"byte {position} ^ {change}"
            assert found[0].position // 16 in (position // 16, position // 16 + 1)


def test_every_byte_of_a_tombstones_base_offset_is_compared_with_its_name(tree: Path) -> None:
    path = tree / "topics/f/0/segments/00000000000000004096.tomb"
    data = path.read_bytes()
    kind = kind_of(str(path), data)
    assert kind is not None
    start = data.index(b" 4096")
    for position in range(start, start + 5):
        for byte in set(range(256)) - {data[position]}:
            changed = data[:position] + bytes([byte]) + data[position + 1 :]
            harmless = tomb_or_none(changed) == tombstone.decode(data)
            assert harmless or list(kind.verify(str(path), changed)), (position, byte)


def tomb_or_none(data: bytes) -> tombstone.Tomb | None:
    try:
        return tombstone.decode(data)
    except CorruptData:
        return None


# ---------------------------------------------------------------- the compiler


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=250,
        env=os.environ | variables,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["dump", "verify"])
@pytest.mark.parametrize("name", ["meta/broker.id", "topics/f/topic.json", "wal/CURRENT"])
def test_a_document_is_looked_into_without_the_compiler(
    tree: Path, command: str, name: str
) -> None:
    code = (
        "import sys; from lamina.cli import main\n"
        f"sys.argv = ['lamina', '{command}', '{tree / name}']\n"
        "try:\n    main.main()\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "slow = {'numba', 'llvmlite', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(','.join(sorted(slow)) or 0)"
    )
    ran = run("-c", code)
    assert (ran.returncode, ran.stderr) == (0, "")
