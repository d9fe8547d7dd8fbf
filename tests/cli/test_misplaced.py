"""`lamina verify` compares a file with its name, its directory and its neighbours."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.wal import index as wal_index
from lamina.formats.wal import log as wal_log
from lamina.inspect.findings import files_below
from lamina.records import prepare
from lamina.storage.files import LocalFiles
from tests.cli.tree import FRAME, KERATIN, SEGMENT, flip

ARCHIVE = "archive/data/orders/0/00000000000000000100.seg"
TOMB = "topics/f/0/segments/00000000000000004096.tomb"


def wal_segment(sequences: list[int], topic_id: int = 0xA0B) -> bytes:
    one = prepare([{"value": b"v", "timestamp": 1}], "wal", now_ms=1)
    frames = (
        wal_log.encode(one, topic_id=topic_id, base_sequence=number, durable=True)[0].tobytes()[1:]
        for number in sequences
    )
    return b"".join(frames)


@pytest.mark.parametrize(
    ("name", "moved", "says"),
    [
        (ARCHIVE, ARCHIVE.replace("orders", "others"), "topic"),
        (ARCHIVE, ARCHIVE.replace("/0/", "/1/"), "partition"),
        (ARCHIVE, ARCHIVE.replace("100.seg", "101.seg"), "begins at offset 100"),
        (ARCHIVE, "00000000000000000101.seg", "begins at offset 100"),
        (f"{SEGMENT}.data", f"{SEGMENT[:-1]}7.data", "sequence 1"),
        (f"{SEGMENT}.data", f"{SEGMENT.replace('a0b', 'a0c')}.data", "topic 0xa0b"),
        ("groups/orders-0_billing.snap", "groups/orders-1_billing.snap", "another partition"),
        ("groups/orders-0_billing.snap", "groups/orders-0_shipping.snap", "another group"),
        (TOMB, TOMB.replace("4096", "4097"), "segment 4096"),
        (f"{KERATIN}.idx", f"{KERATIN[:-2]}43.idx", "segment 42"),
        (f"{KERATIN}.tidx", f"{KERATIN[:-2]}43.tidx", "segment 42"),
        (f"{FRAME}.idx", f"{FRAME[:-1]}7.idx", "segment 0"),
    ],
)
def test_a_file_under_the_name_of_another_is_found(
    tree: Path, lamina: Any, name: str, moved: str, says: str
) -> None:
    target = tree / moved
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = lamina("dump", "--json", tree / name)
    (tree / name).rename(target)
    ran = lamina("verify", "--json", target)
    assert ran.code == 1
    (finding,) = ran.rows
    assert says in finding["problem"]
    rows = [row for row in lamina("dump", "--json", target).rows if "problem" not in row]
    assert rows == whole.rows, "what it holds is shown all the same"


def test_a_name_is_compared_from_within_the_directory_too(
    tree: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree / "archive/data/others/0"
    folder.mkdir(parents=True)
    (tree / ARCHIVE).rename(folder / "00000000000000000100.seg")
    monkeypatch.chdir(folder)
    assert lamina("verify", "00000000000000000100.seg").code == 1


@pytest.mark.parametrize("name", [f"{KERATIN}.idx", f"{KERATIN}.tidx"])
def test_bytes_after_the_last_entry_of_an_index_are_found(
    tree: Path, lamina: Any, name: str
) -> None:
    size = (tree / name).stat().st_size
    (tree / name).write_bytes((tree / name).read_bytes() + b"garbage")
    (finding,) = lamina("verify", "--json", tree / name).rows
    assert (finding["position"], finding["problem"]) == (size, "the index ends inside an entry")


def test_a_wal_index_that_makes_no_sense_is_found_without_its_data(tree: Path, lamina: Any) -> None:
    (tree / f"{SEGMENT}.data").unlink()
    path = tree / f"{SEGMENT}.idx"
    assert lamina("verify", path).code == 0
    path.write_bytes(b"\xff" * 40)
    assert lamina("verify", path).code == 1
    assert len(lamina("dump", "--json", path).rows) == 2, "and it is still shown"


@pytest.mark.parametrize("name", [f"{FRAME}.log", f"{KERATIN}.log", f"{SEGMENT}.data"])
def test_prepared_space_is_only_at_the_end_of_the_last_segment(
    tree: Path, lamina: Any, name: str
) -> None:
    path = tree / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert lamina("verify", path).code == 0
    stem, suffix = os.path.splitext(path.name)
    later = f"{stem[:-1]}{int(stem[-1]) + 1}{suffix}"
    path.with_name(later).write_bytes(b"")
    (finding,) = lamina("verify", "--json", path).rows
    assert finding["position"] == size
    assert finding["problem"] == "zeros where records should be"


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_record_from_before_the_segment_is_no_sound_one(
    tree: Path, lamina: Any, format_name: str
) -> None:
    """Behind a damaged first record, one of an older file must not count."""
    module = frame_log if format_name == "frame" else keratin_log
    one = prepare([b"v"], format_name, now_ms=1)
    records = [module.encode(one, base)[0].tobytes() for base in (100, 7, 8)]
    head = b"" if format_name == "frame" else keratin_log.encode_header(100, 1)
    path = tree / "00000000000000000100.log"
    path.write_bytes(head + b"".join(records))
    flip(path, len(head) + 20)
    (finding,) = lamina("verify", "--json", path).rows
    assert (finding["position"], finding["resumes_at"]) == (len(head), None)
    assert not any("offset" in row for row in lamina("dump", "--json", path).rows)


def test_a_long_wal_index_is_compared_to_its_end(tree: Path, lamina: Any) -> None:
    count = (1 << 20) + 5
    batch = prepare([b""] * count, "wal", now_ms=1)
    frames, positions = wal_log.encode(batch, topic_id=0xA0B, base_sequence=1, durable=True)
    length = int(positions[1])
    frames = np.asarray(frames).reshape(count, length)[:, 1:]
    (tree / f"{SEGMENT}.data").write_bytes(frames.tobytes())
    entries = np.zeros(count, dtype=wal_index.ENTRY)
    entries["position"] = np.arange(count) * (length - 1)
    entries["length"] = length - 1
    entries["timestamp_ms"] = 1
    path = tree / f"{SEGMENT}.idx"
    path.write_bytes(wal_index.encode(entries))
    assert lamina("verify", "--json", path).rows == []
    entries["timestamp_ms"][-1] = 2
    path.write_bytes(wal_index.encode(entries))
    (finding,) = lamina("verify", "--json", path).rows
    assert finding["position"] == 20 * (count - 1)


@pytest.mark.parametrize("sequences", [[1, 2, 5], [3, 4]])
@pytest.mark.parametrize("kept", [1, 2, 3, None])
def test_a_wal_index_with_holes_agrees_up_to_where_it_ends(
    tree: Path, lamina: Any, sequences: list[int], kept: int | None
) -> None:
    data = wal_segment(sequences)
    (tree / f"{SEGMENT}.data").write_bytes(data)
    entries = wal_index.build(data, wal_log.scan_segment(data), first_sequence=1)
    path = tree / f"{SEGMENT}.idx"
    path.write_bytes(wal_index.encode(entries[:kept]))
    assert lamina("verify", path).code == 0
    marked = wal_index.mark_deleted(entries, 1, [(1, 2)])
    path.write_bytes(wal_index.encode(marked[:kept]))
    assert lamina("verify", path).code == 0
    flags = [row["flags"] & wal_index.DELETED for row in lamina("dump", "--json", path).rows]
    assert flags[0], "a dump shows what is in the file"
    if sequences[0] == 1:  # else it is the data that is misnamed, and the index is not blamed
        path.write_bytes(wal_index.encode(entries[1:]))
        assert lamina("verify", path).code == 1


# ---------------------------------------------------------------- newer formats


@pytest.mark.parametrize("change", ["version", "header_len"])
@pytest.mark.parametrize("name", [f"{KERATIN}.log", "groups/orders-0_billing.delta"])
def test_a_newer_keratin_file_is_reported_and_not_walked(
    tree: Path, lamina: Any, name: str, change: str
) -> None:
    path = tree / name
    data = bytearray(path.read_bytes())
    at, kind = (8, ">H") if change == "version" else (12, ">I")
    (before,) = struct.unpack_from(kind, data, at)
    struct.pack_into(kind, data, at, before + 1)
    end = (60 if name.endswith("delta") else 68) - 4
    damaged = bytes(data)
    data[end : end + 4] = crc32c_of(damaged[:end]).to_bytes(4, "big")
    path.write_bytes(damaged)
    assert "newer format" not in lamina("verify", path).out, "the checksum tells damage"
    path.write_bytes(data)
    (finding,) = lamina("verify", "--json", path).rows
    assert finding["position"] == at
    assert f"a newer format: unknown {change}" in finding["problem"]
    (row,) = lamina("dump", "--json", path).rows
    assert row["problem"] == finding["problem"]


# ---------------------------------------------------------------- what cannot be read


def test_an_unreadable_file_is_a_finding_and_the_others_are_checked(
    tree: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = str(tree / f"{FRAME}.log")
    opened = LocalFiles.open_read_only

    def guarded(self: LocalFiles, path: str) -> Any:
        if path == forbidden:
            raise PermissionError(13, "Permission denied", path)
        return opened(self, path)

    flip(tree / f"{KERATIN}.log", 100)
    monkeypatch.setattr(LocalFiles, "open_read_only", guarded)
    ran = lamina("verify", "--json", tree)
    assert ran.code == 1
    assert {row["path"]: row["problem"] for row in ran.rows} == {
        forbidden: "cannot be read: Permission denied",
        str(tree / f"{KERATIN}.log"): "the checksum does not fit",
    }


def test_a_file_that_retention_takes_meanwhile_is_no_finding(
    tree: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = str(tree / f"{FRAME}.log")
    opened = LocalFiles.open_read_only

    def gone(self: LocalFiles, path: str) -> Any:
        if path == vanishing and os.path.exists(path):
            os.unlink(path)
        return opened(self, path)

    monkeypatch.setattr(LocalFiles, "open_read_only", gone)
    assert lamina("verify", tree).code == 0


def test_a_directory_that_cannot_be_listed_is_a_finding(
    tree: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = str(tree / "topics/f/0/segments")
    listed = os.scandir

    def guarded(path: Any) -> Any:
        if str(path) == forbidden:
            raise PermissionError(13, "Permission denied", forbidden)
        return listed(path)

    monkeypatch.setattr(os, "scandir", guarded)
    ran = lamina("verify", "--json", tree)
    assert [(row["path"], row["problem"]) for row in ran.rows] == [
        (forbidden, "cannot be read: Permission denied")
    ]


def test_what_recovery_set_aside_is_not_reported_again(tmp_path: Path) -> None:
    (tmp_path / "quarantine" / "t" / "0").mkdir(parents=True)
    damaged = bytes.fromhex("015e0bb1") + bytes(40)
    (tmp_path / "quarantine" / "t" / "0" / "00000000000000000000.log").write_bytes(damaged)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "00000000000000000000.log").write_bytes(damaged)
    names, unread = files_below(str(tmp_path))
    assert [Path(name).parent.name for name in names] == ["kept"]
    assert unread == []
