"""`lamina dump`, `verify` and `demo`, on a tree that holds a file of every kind."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lamina.cli import main as cli
from lamina.formats.documents import topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import FrameType
from lamina.inspect.kinds import recognise
from lamina.records import prepare
from lamina.store.store import Store
from lamina_demo import pipeline
from tests.cli.tree import FRAME, KERATIN, KINDS, SEGMENT, flip, golden, in_a_process

# ---------------------------------------------------------------- dump


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_every_kind_is_dumped_for_people(tree: Path, lamina: Any, name: str) -> None:
    kind, data = KINDS[name]
    ran = lamina("dump", tree / name, "--verify")
    assert (ran.code, ran.err) == (0, "")
    first, *rows = ran.out.splitlines()
    assert first == f"# {tree / name}: {kind}, {len(data)} bytes"
    assert rows
    assert not any(row.startswith("!!") for row in rows)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_every_kind_is_dumped_as_json_and_nothing_else(
    tree: Path, lamina: Any, name: str
) -> None:
    ran = lamina("dump", "--json", tree / name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.rows
    assert not any("problem" in row for row in ran.rows)


def test_records_are_dumped_with_position_and_checksum(tree: Path, lamina: Any) -> None:
    ran = lamina("dump", "--json", tree / "topics/g/0/segments/00000000000000000000.log")
    common = {"size": 43, "checksum": "ok"}
    assert ran.rows == [
        {"position": 0, "offset": 0, "timestamp_ms": 1_700_000_000_000, "key": None,
         "value": "\1\2\3", **common},
        {"position": 43, "offset": 1, "timestamp_ms": 1_700_000_000_001, "key": "\t",
         "value": "\4\5", **common},
    ]  # fmt: skip


def test_headers_and_bytes_that_are_no_text_are_dumped(tree: Path, lamina: Any) -> None:
    ran = lamina("dump", "--json", tree / "topics/l/0/segments/00000000000000000042.log")
    assert [row["offset"] for row in ran.rows] == [42, 43, 44, 45]
    assert ran.rows[1]["headers"] == [["a", "\1"], ["a", None]]
    data = frame_log.encode(prepare([b"\xff\xfe"], "frame", now_ms=1), 0)[0].tobytes()
    (tree / f"{FRAME}.log").write_bytes(data)
    assert lamina("dump", "--json", tree / f"{FRAME}.log").rows[0]["value"] == {"base64": "//4="}


def test_control_frames_of_the_wal_are_dumped_with_their_bodies(tree: Path, lamina: Any) -> None:
    rows = lamina("dump", "--json", tree / "wal/wal-1.log").rows
    assert rows[0]["type"] == "TOPIC_CREATE"
    assert rows[0]["body"]["name"] == "orders"
    assert [row["value"] for row in rows if row["type"] == "APPEND"] == ["\1\2\3", "hello"]
    assert all(row["topic_id"] in (0, 0xA0B) for row in rows)


def test_a_dump_starts_at_an_offset_and_ends_at_a_limit(tree: Path, lamina: Any) -> None:
    ran = lamina("dump", "--json", tree / f"{KERATIN}.log", "--from", 500, "--limit", 3)
    assert [row["offset"] for row in ran.rows] == [500, 501, 502]
    ran = lamina("dump", "--json", tree / f"{FRAME}.log", "--from", 199)
    assert [row["offset"] for row in ran.rows] == [199, 200]
    ran = lamina("dump", "--json", tree / f"{FRAME}.idx", "--from", 1, "--limit", 1)
    entry = {"entry": 1, "position": 16, "size": 16, "checksum": "none"}
    assert ran.rows == [{**entry, "offset": 96, "log_position": 4128}]
    assert lamina("dump", "--json", tree / f"{FRAME}.idx", "--from", 9).rows == []
    archived = tree / "archive/data/orders/0/00000000000000000100.seg"
    everything = lamina("dump", "--json", archived).rows
    last = everything[-1]["offset"]
    rows = lamina("dump", "--json", archived, "--from", last).rows
    assert rows == [everything[0], everything[-1]], "the header, then the last record"


@pytest.mark.parametrize("option", [("--from", -1), ("--limit", 0), ("--limit", "x"), ("--wrong",)])
def test_a_wrong_option_is_a_wrong_call(tree: Path, lamina: Any, option: tuple[object]) -> None:
    ran = lamina("dump", tree / f"{FRAME}.log", *option)
    assert ran.code == 2
    assert option[0] in ran.err


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_only_with_verify_does_a_dump_of_damage_fail(
    tree: Path, lamina: Any, as_json: list[str]
) -> None:
    flip(tree / f"{FRAME}.log", 43 * 150 + 36)
    path = tree / f"{FRAME}.log"
    assert lamina("dump", path, *as_json).code == 0
    assert lamina("dump", path, "--verify", *as_json).code == 1
    assert lamina("dump", path, "--verify", "--limit", 1, *as_json).code == 1


def test_damage_in_the_middle_costs_one_record_and_the_rest_is_dumped(
    tree: Path, lamina: Any
) -> None:
    flip(tree / f"{FRAME}.log", 43 * 7 + 36)
    rows = lamina("dump", "--json", tree / f"{FRAME}.log").rows
    assert [row["offset"] for row in rows if "offset" in row] == [*range(7), *range(8, 201)]
    assert rows[7] == {
        "position": 301,
        "checksum": "bad",
        "problem": "the checksum does not fit",
        "resumes_at": 344,
    }
    text = lamina("dump", tree / f"{FRAME}.log").out.splitlines()
    assert text[8] == "!! byte 301: the checksum does not fit; sound again at byte 344"


def test_damage_at_the_end_of_a_step_of_a_long_dump_is_seen(tree: Path, lamina: Any) -> None:
    """A dump decodes a thousand records at a time; the log must continue across the steps."""
    batch = prepare([b"v"] * 1000, "frame", now_ms=1)
    parts = [frame_log.encode(batch, base)[0].tobytes() for base in (0, 1005)]
    (tree / f"{FRAME}.log").write_bytes(b"".join(parts))
    rows = lamina("dump", "--json", tree / f"{FRAME}.log").rows
    assert [row["offset"] for row in rows if "offset" in row] == [*range(1000), *range(1005, 2005)]
    assert rows[1000]["position"] == rows[1000]["resumes_at"] == len(parts[0])


def test_a_sound_record_after_a_jump_is_reported_and_still_dumped(tree: Path, lamina: Any) -> None:
    one = prepare([b"v"], "frame", now_ms=1)
    data = b"".join(frame_log.encode(one, base)[0].tobytes() for base in (0, 5, 6, 2, 7))
    (tree / f"{FRAME}.log").write_bytes(data)
    rows = lamina("dump", "--json", tree / f"{FRAME}.log").rows
    assert [row.get("offset", "damage") for row in rows] == [0, "damage", 5, 6, "damage", 7]


@pytest.mark.parametrize("wrong", ["a control frame", "a wal segment"])
def test_sound_checksums_do_not_hide_what_makes_no_sense(
    tree: Path, lamina: Any, wrong: str
) -> None:
    if wrong == "a control frame":
        path = tree / "wal/wal-1.log"
        bad = wal_log.encode_control(
            FrameType.EVICT_WATERMARK, topic_id=1, sequence=1, timestamp_ms=1, body=b"??"
        )
        path.write_bytes(path.read_bytes() + bytes(bad) + golden("wal-log.bin"))
    else:
        path = tree / f"{SEGMENT}.data"
        path.write_bytes(golden("wal-segment.bin") * 2)
    ran = lamina("verify", path)
    assert ran.code == 1
    assert lamina("dump", "--verify", path).code == 1
    at = len(golden("wal-log.bin" if wrong == "a control frame" else "wal-segment.bin"))
    assert f"{path}: byte {at}: " in ran.out


# ---------------------------------------------------------------- verify


def test_a_clean_tree_is_sound(tree: Path, lamina: Any) -> None:
    (tree / "meta/lock").write_text("held by somebody")
    (tree / "meta/broker.id.tmp").write_text("a leftover")
    ran = lamina("verify", tree)
    assert ran == (0, f"files checked: {len(KINDS)}; all sound\n", "")
    assert lamina("verify", "--json", tree) == (0, "", "")


@pytest.mark.parametrize("name", KINDS)
def test_damage_in_a_file_of_any_kind_is_found_and_named(
    tree: Path, lamina: Any, name: str
) -> None:
    size = len(KINDS[name][1])
    flip(tree / name, size // 2)
    ran = lamina("verify", tree)
    assert ran.code == 1
    (spot,) = re.findall(r"^(.*): byte (\d+): .+$", ran.out, re.MULTILINE)
    assert spot[0] == str(tree / name)
    assert 0 <= int(spot[1]) <= size
    assert ran.out.splitlines()[-1] == f"files checked: {len(KINDS)}; damaged spots: 1"
    (row,) = lamina("verify", "--json", tree).rows
    assert (row["path"], row["position"]) == (str(tree / name), int(spot[1]))
    assert lamina("dump", "--verify", tree / name).code == 1


@pytest.mark.parametrize("name", KINDS)
def test_any_damage_anywhere_is_reported_and_never_a_crash(
    tree: Path, lamina: Any, name: str
) -> None:
    data = KINDS[name][1]
    whole = lamina("dump", "--json", tree / name)
    for position in {len(data) // 3, len(data) - 1}:
        flip(tree / name, position)
        dumped = lamina("dump", "--json", tree / name)
        found = lamina("verify", "--json", tree / name)
        assert found.code == 1 or dumped == whole, f"byte {position} is neither found nor harmless"
        (tree / name).write_bytes(data[:position])
        assert lamina("verify", "--json", tree / name).code in (0, 1)
        assert lamina("dump", tree / name).code == 0
        (tree / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "start", "size"),
    [
        (f"{FRAME}.log", 0, 43),
        (f"{KERATIN}.log", 68, 136),
        ("wal/wal-1.log", 0, None),
        (f"{SEGMENT}.data", 0, None),
    ],
)
def test_each_damaged_spot_of_a_log_says_where_sound_data_goes_on(
    tree: Path, lamina: Any, name: str, start: int, size: int | None
) -> None:
    path = tree / name
    rows = lamina("dump", "--json", path).rows
    flip(path, rows[0]["position"] + 20)
    found = lamina("verify", "--json", path).rows
    assert [(each["position"], each["resumes_at"]) for each in found] == [
        (start, rows[1]["position"])
    ]
    assert size is None or rows[1]["position"] == start + size
    assert lamina("dump", "--json", path).rows[1:] == rows[1:]
    text = lamina("verify", path).out
    assert f"{path}: byte {start}: " in text
    assert f"sound again at byte {rows[1]['position']}" in text


@pytest.mark.parametrize(
    "name",
    [f"{FRAME}.log", f"{KERATIN}.log", "wal/wal-1.log", f"{SEGMENT}.data",
     "groups/orders-0_billing.delta"],
)  # fmt: skip
def test_space_that_was_prepared_and_never_written_is_no_damage(
    tree: Path, lamina: Any, name: str
) -> None:
    path = tree / name
    rows = lamina("dump", "--json", path).rows
    path.write_bytes(path.read_bytes() + bytes(100_000))
    assert lamina("verify", tree).code == 0
    assert lamina("dump", "--json", "--verify", path) == (0, "".join(
        json.dumps(row) + "\n" for row in rows), "")  # fmt: skip
    path.write_bytes(path.read_bytes() + b"\1")
    assert lamina("verify", path).code == 1


@pytest.mark.parametrize("name", [f"{FRAME}.log", f"{KERATIN}.log", "wal/wal-1.log"])
def test_a_torn_tail_is_reported_with_nothing_sound_after_it(
    tree: Path, lamina: Any, name: str
) -> None:
    path = tree / name
    path.write_bytes(path.read_bytes()[:-3])
    (found,) = lamina("verify", "--json", path).rows
    assert found["problem"] == "the file ends inside a record"
    assert found["resumes_at"] is None


@pytest.mark.parametrize(
    "name", [f"{FRAME}.idx", f"{FRAME}.timeidx", f"{KERATIN}.idx", f"{KERATIN}.tidx"]
)
def test_an_index_may_lack_its_last_entries_but_not_have_others(
    tree: Path, lamina: Any, name: str
) -> None:
    path = tree / name
    data = path.read_bytes()
    path.write_bytes(data[:-16])
    assert lamina("verify", tree).code == 0
    path.write_bytes(data + data[-16:-1] + bytes([data[-1] ^ 1]))
    assert lamina("verify", tree).code == 1


@pytest.mark.parametrize("name", [f"{FRAME}.log", f"{KERATIN}.log", f"{SEGMENT}.data"])
def test_an_index_is_not_blamed_for_its_log(tree: Path, lamina: Any, name: str) -> None:
    log = tree / name
    for position in (0, 30, log.stat().st_size // 2, log.stat().st_size - 1):
        flip(log, position)
        rows = lamina("verify", "--json", tree).rows
        assert {row["path"] for row in rows} == {str(log)}, position
        flip(log, position)


@pytest.mark.parametrize("name", [f"{FRAME}.log", f"{KERATIN}.log"])
def test_a_log_under_another_ones_name_is_found(tree: Path, lamina: Any, name: str) -> None:
    path = tree / name
    renamed = path.rename(path.with_name("00000000000000000007.log"))
    rows = lamina("verify", "--json", renamed).rows
    assert "its name says another" in rows[0]["problem"]


def test_a_wal_whose_first_bytes_look_like_a_frame_is_still_a_wal() -> None:
    head = struct.pack("<BI", 1, 0x00B10B5E)
    kind = recognise("/data/wal/wal-1.log", head)
    assert kind is not None
    assert kind.name == "write-ahead log"


def test_files_of_others_are_counted_and_left_alone(tree: Path, lamina: Any) -> None:
    (tree / "notes.txt").write_text("not ours")
    (tree / "nothing").symlink_to(tree / "missing")
    os.mkfifo(tree / "pipe")
    ran = lamina("verify", tree)
    assert ran.code == 0
    assert f"files checked: {len(KINDS)} (1 not Lamina's); all sound" in ran.out


def test_every_file_of_an_open_store_is_known(tmp_path: Path, lamina: Any) -> None:
    with Store(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [b"x"])
        store.flush()
        there = {path.name for path in (tmp_path / "data/meta").iterdir()}
        assert {"lock", "reserve", "recovery.json"} <= there
        ran = lamina("verify", tmp_path / "data")
    assert "not Lamina's" not in ran.out
    assert ran.code == 0


# ---------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    ("command", "name", "says"),
    [
        ("dump", "notes.txt", "not a file that Lamina writes"),
        ("dump", "missing.log", "No such file"),
        ("dump", "topics", "is a directory"),
        ("dump", "pipe", "not a regular file"),
        ("verify", "missing", "no such file"),
        ("verify", "pipe", "not a regular file"),
    ],
)
def test_a_wrong_file_is_one_clear_line(
    tree: Path, lamina: Any, command: str, name: str, says: str
) -> None:
    (tree / "notes.txt").write_text("not ours")
    os.mkfifo(tree / "pipe")
    for as_json in ([], ["--json"]):
        ran = lamina(command, tree / name, *as_json)
        assert (ran.code, ran.out) == (2, "")
        assert len(ran.err.splitlines()) == 1
        assert ran.err.startswith("lamina: ")
        assert str(tree / name) in ran.err
        assert says in ran.err


def test_an_error_of_the_system_is_one_line_too(
    tree: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error", "/dev/sda")

    monkeypatch.setattr("lamina.cli.file_reports.verify", broken)
    ran = lamina("verify", tree)
    assert ran == (3, "", "lamina: /dev/sda: Input/output error\n")


# ---------------------------------------------------------------- hostile contents

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r\n!! "


def hostile_bytes() -> dict[str, bytes]:
    text = HOSTILE.encode()
    row = {"key": text, "value": text, "timestamp": 1}
    headers = [{"key": HOSTILE, "value": text}]
    wal = prepare([{"value": text, "tag": text, "node": text, "timestamp": 1}], "wal", now_ms=1)
    uuid = golden("frame-broker.json").replace(b"6f1c24de", json.dumps(HOSTILE)[1:-1].encode())
    broker = golden("frame-broker.json").replace(b"alpha", json.dumps(HOSTILE)[1:-1].encode())
    return {
        f"{FRAME}.log": frame_log.encode(prepare([row], "frame", now_ms=1), 0)[0].tobytes(),
        f"{KERATIN}.log": keratin_log.encode_header(42, 1)
        + keratin_log.encode(prepare([row | {"headers": headers}], "keratin", now_ms=1), 42)[
            0
        ].tobytes(),
        "wal/wal-1.log": wal_log.encode(wal, topic_id=1, base_sequence=1, durable=True)[
            0
        ].tobytes(),
        "meta/broker.id": broker,
        "broker.id": uuid,
        "wal/CURRENT": text,
        "topics/f/topic.json": topic_file.encode(
            TopicFile(HOSTILE, "frame", 1, 1, 1, settings={HOSTILE: HOSTILE})
        ),
    }


@pytest.mark.parametrize("name", hostile_bytes())
@pytest.mark.parametrize(
    "command", [["dump"], ["dump", "--json"], ["verify"], ["verify", "--json"]]
)
def test_what_is_in_a_file_cannot_steer_the_terminal(
    tree: Path, lamina: Any, name: str, command: list[str]
) -> None:
    (tree / name).write_bytes(hostile_bytes()[name])
    ran = lamina(*command, tree / name)
    assert ran.code in (0, 1)
    lines = (ran.out + ran.err).split("\n")
    assert all(line.isprintable() for line in lines)
    assert command == ["verify"] or any("owned" in line for line in lines) or ran.out == ""


def test_what_a_file_is_called_cannot_steer_the_terminal(tree: Path, lamina: Any) -> None:
    folder = tree / "\x1b[2J[bold]"
    folder.mkdir()
    path = folder / "00000000000000000000.log"
    path.write_bytes(golden("frame-log.bin")[:-1])
    for ran in (
        lamina("verify", tree),
        lamina("dump", path),
        lamina("dump", folder),
        lamina("verify", folder / "missing"),
    ):
        assert all(line.isprintable() for line in (ran.out + ran.err).split("\n"))
        assert "[2J[bold]" in ran.out + ran.err, "and it is not read as markup"


# ---------------------------------------------------------------- demo


def test_the_demo_runs_in_a_new_directory_and_runs_again(
    tmp_path: Path, lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Its end, with Spark, is told once, by a test of Spark's.
    monkeypatch.setattr(pipeline, "tell", lambda *_: None)
    first = lamina("demo", "--data", "here [bold]")
    assert first.code == 0
    assert "damaged spots: 1" in first.out
    assert "none is lost" in first.out
    again = lamina("demo", "--data", "here [bold]")
    assert again.code == 0
    told, told_again = (_of_formats(ran.out) for ran in (first, again))
    assert told == told_again, "how far a killed producer came is chance, this not"
    assert "frame: a topic one can read" in told
    (tmp_path / "empty").mkdir()
    assert lamina("demo", "--data", tmp_path / "empty").code == 0
    assert lamina("verify", tmp_path / "empty").code == 1, "what it left is what it told"


def _of_formats(told: str) -> str:
    """The chapters between the two producers that are killed."""
    begin = told.index("frame: a topic one can read")
    return told[begin : told.rindex("a producer is killed")].rstrip(" ─")


def test_the_demo_does_not_touch_a_directory_of_others(tmp_path: Path, lamina: Any) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    ran = lamina("demo", "--data", tmp_path)
    assert ran.code == 2
    assert "not made by the demo" in ran.err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert lamina("demo", "--data", tmp_path / "thesis.txt").code == 2
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


# ---------------------------------------------------------------- the program


def commands() -> list[str]:
    group = typer.main.get_command(cli.app)
    return sorted(getattr(group, "commands", {}))


def test_there_are_commands() -> None:
    assert {"dump", "verify", "demo"} <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: lamina {command}" in " ".join(result.output.split())


def test_the_program_runs_as_a_process(tree: Path) -> None:
    path = tree / "topics/g/0/segments/00000000000000000000.log"
    flip(path, 36)
    ran = in_a_process("dump", "--json", "--verify", path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert [json.loads(line).get("offset") for line in ran.stdout.splitlines()] == [None, 1]
    ran = in_a_process("verify", tree)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert f"{path}: byte 0: " in ran.stdout


def test_a_wrong_call_of_the_process_shows_no_traceback(tmp_path: Path) -> None:
    ran = in_a_process("dump", tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"lamina: {tmp_path} is a directory; dump shows one file, verify takes a tree\n"
    )


def test_a_reader_that_goes_away_is_no_error_message(tree: Path) -> None:
    big = prepare([zlib.compress(bytes([i % 250])) for i in range(20_000)], "frame", now_ms=1)
    (tree / f"{FRAME}.log").write_bytes(frame_log.encode(big, 0)[0].tobytes())
    command = f"{sys.executable} -m lamina.cli.main dump {tree / f'{FRAME}.log'} | head -1"
    ran = subprocess.run(
        command, check=False, shell=True, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.startswith("# ")
    assert ran.stderr == ""


def test_the_help_does_not_wait_for_the_compiler() -> None:
    code = (
        "import sys, lamina.cli.main\n"
        "slow = {'numba', 'llvmlite', 'pyarrow', 'numpy', 'pyspark'} & set(sys.modules)\n"
        "sys.exit(','.join(sorted(slow)) or 0)"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
