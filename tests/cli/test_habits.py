"""What people who know kcat and rpk type first: ends, keys, groups, times, certificates, ports."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.cli.input_format import keyed, parsed
from lamina.errors import InvalidRequest
from tests.cli.test_topic import ok, typed, where
from tests.server.rig import served

__all__ = ["typed", "where"]
FORMATS = ("keratin", "frame", "wal")


def uneven(path: Path, format_name: str) -> int:
    """Makes a topic with five records in one partition and one in the other; its first offset."""
    with library.open(str(path)) as store:
        store.create_topic("t", partitions=2, format=format_name)
        store.append("t", [str(number).encode() for number in range(5)], partition=0)
        store.append("t", b"short", partition=1)
        return store.earliest_offset("t", 0)


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_offset_beyond_one_partition_is_read_in_the_others(
    lamina: Any, tmp_path: Path, format_name: str
) -> None:
    first = uneven(tmp_path / "data", format_name)
    data = ("--data", tmp_path / "data")
    bounded = ("topic", "consume", "t", "-o", f"{first + 3}:end", "-f", r"%v ")
    assert ok(lamina(*bounded, *data)).out == "3 4 "
    follows = ("topic", "consume", "t", "-o", first + 3, "-n", 2, "-f", r"%v ")
    assert ok(lamina(*follows, *data)).out == "3 4 "
    assert ok(lamina("cat", "-C", "-t", "t", "-o", first + 3, "-e", "-q", *data)).out == "3\n4\n"
    none = lamina("topic", "consume", "t", "-o", "100:200", *data)
    assert (none.code, none.out) == (0, "")
    assert none.err == "lamina: nothing is at offset 100 yet: t ends before\n"


def test_a_record_below_the_offset_that_is_waited_for_is_not_printed(tmp_path: Path) -> None:
    from lamina.cli import record_printing
    from lamina.cli.offsets import parse

    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        spans = record_printing.spans(store, ["t"], [], parse("2", 0))
        store.append("t", [b"0", b"1", b"2", b"3"])
        (read, *_) = list(record_printing.reads(store, spans, 2))
        assert read.batch.column("value").to_pylist() == [b"2", b"3"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_cat_from_the_end_to_the_end_ends(lamina: Any, tmp_path: Path, format_name: str) -> None:
    uneven(tmp_path / "data", format_name)
    ran = lamina("cat", "-C", "-t", "t", "-o", "end", "-e", "--data", tmp_path / "data")
    assert ran[:] == (0, "", "% Reached end of topic t\n")


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_the_printed_time_is_the_stored_one(
    lamina: Any, tmp_path: Path, typed: Any, format_name: str, kind: str
) -> None:
    data = ("--data", tmp_path / "data")
    made = ("topic", "create", "t", "--format", format_name)
    ok(lamina(*made, "-c", f"message.timestamp.type={kind}", *data))
    typed(b"one\n")
    text = ok(lamina("topic", "produce", "t", *data)).out
    typed(b"two\n")
    (row,) = ok(lamina("topic", "produce", "t", "--json", *data)).rows
    stored = ok(lamina("topic", "consume", "t", "-o", ":end", "-f", r"%d\n", *data)).out.split()
    assert text.endswith(f" with timestamp {stored[0]}.\n")
    assert str(row["timestamp_ms"]) == stored[1]


def test_each_line_has_its_key(lamina: Any, where: list[str], typed: Any) -> None:
    ok(lamina("topic", "create", "t", *where))
    typed(b"a:1\nb:2:3\nplain\n")
    ok(lamina("topic", "produce", "t", "-K", ":", *where))
    typed(b"c\x1f4;d\x1f5;")
    ok(lamina("topic", "produce", "t", "-f", r"%k\x1f%v;", *where))
    typed(b"1700000000000 e 6\n")
    ok(lamina("topic", "produce", "t", "-f", r"%d %k %v\n", *where))
    printed = ok(lamina("topic", "consume", "t", "-o", ":end", "-f", r"%k=%v\n", *where)).out
    assert printed.split() == ["a=1", "b=2:3", "=plain", "c=4", "d=5", "e=6"]
    last = ok(lamina("topic", "consume", "t", "-o", "5:end", "-f", "%d", *where)).out
    assert last == "1700000000000"
    typed(b"nothing-between\n")
    refused = lamina("topic", "produce", "t", "-f", r"%k %v\n", *where)
    assert (refused.code, "there is no ' ' after the key" in refused.err) == (2, True)


def test_input_formats_that_cannot_be_split_are_refused() -> None:
    for text in ("", "%k%v", "%v %v", "%x %v", "%k only", "begin %v"):
        with pytest.raises(InvalidRequest):
            parsed(text)
    with pytest.raises(InvalidRequest):
        keyed("")
    assert parsed("%k %% %v").separators == (b" % ",)


def test_a_group_goes_on_where_it_was(lamina: Any, where: list[str], typed: Any) -> None:
    ok(lamina("topic", "create", "t", *where))
    typed(b"1\n2\n3\n")
    ok(lamina("topic", "produce", "t", *where))
    read = ("topic", "consume", "t", "-g", "g", "-f", r"%v\n")
    assert ok(lamina(*read, "-n", 2, *where)).out == "1\n2\n"
    assert ok(lamina(*read, "-o", ":end", *where)).out == "3\n"
    assert ok(lamina(*read, "-o", ":end", *where)).out == ""
    assert lamina(*read, "-o", "5", *where).code == 2
    assert lamina(*read, "-p", "0", *where).code == 2
    (row,) = ok(lamina("group", "describe", "g", "--json", *where)).rows
    assert (row["current_offset"], row["lag"], row["inflight"]) == (3, 0, 0)


def test_what_could_not_be_printed_is_given_back(tmp_path: Path) -> None:
    from lamina.cli.group_reading import group_reads

    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [b"1", b"2"])
        reads = group_reads(store, "g", ["t"], count=None, ends=True)
        next(reads)
        reads.close()  # type: ignore[attr-defined]
        (part,) = store.describe_group("t", "g").partitions
        assert (part.committed, part.inflight) == (0, 0)


def test_consumed_json_is_whole_and_in_order(lamina: Any, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    odd = {"key": b"\xff", "value": 'ü"\n'.encode(), "headers": [{"key": "h", "value": None}]}
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [odd | {"timestamp": 7}, {"value": None, "timestamp": 8}])
        store.create_topic("w", format="wal")
        store.append("w", [{"value": b"v", "tag": b"x", "timestamp": 9}])
    lines = ok(lamina("topic", "consume", "t", "-o", ":end", "--json", *data)).out.splitlines()
    names = ["topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"]
    assert [list(json.loads(line)) for line in lines] == [names, names]
    first, second = map(json.loads, lines)
    assert first == {
        **{"topic": "t", "partition": 0, "offset": 0, "timestamp_ms": 7},
        **{"key": {"base64": "/w=="}, "value": 'ü"\n', "headers": [["h", None]]},
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    (wal,) = ok(lamina("topic", "consume", "w", "-o", ":end", "--json", *data)).rows
    assert list(wal) == [*names, "tag", "node"]
    assert (wal["tag"], wal["node"]) == ("x", None)
    bare = ok(lamina("topic", "consume", "t", "-o", ":1", "--meta-only", *data)).rows[0]
    assert "value" not in bare


def test_archived_records_are_read_by_every_reading_command(lamina: Any, tmp_path: Path) -> None:
    data, archive = tmp_path / "data", tmp_path / "archive"
    with library.open(str(data), archive=str(archive)) as store:
        config = {"remote.storage.enable": True, "segment.bytes": 4096, "local.retention.bytes": 1}
        store.create_topic("t", config=config)
        for number in range(40):
            store.append("t", f"{number:0500}".encode())
        store.archive()
        store.maintain()
    assert any(segment.cold for segment in _segments(data, archive))
    named = ("--data", data, "--archive", archive)
    for command in (
        ("topic", "consume", "t", "-o", ":end", "-f", r"%o\n"),
        ("cat", "-C", "-t", "t", "-e", "-q", "-f", r"%o\n"),
    ):
        assert ok(lamina(*command, *named)).out.split() == [str(each) for each in range(40)]
    assert ok(lamina("topic", "list", "--json", *named)).rows[0]["records"] == 40
    assert "cold" in ok(lamina("segment", "list", "t", *named)).out


def _segments(data: Path, archive: Path) -> Any:
    with library.open(str(data), read_only=True, archive=str(archive)) as store:
        return store.segments("t", 0)


def test_a_private_authority_is_trusted_and_a_bad_certificate_is_one_line(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = shutil.which("openssl")
    assert program is not None, "openssl makes the certificate"
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    command = [*made, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    files = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with served(tmp_path / "data", **files) as service:
        at = ("topic", "list", "--server", service.flight_url)
        ok(lamina(*at, "--ca", certificate))
        command = [sys.executable, "-m", "lamina.cli.main", *at]
        refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert refused.stderr.count("\n") == 1
        assert "its certificate is not trusted (self-signed certificate)" in refused.stderr
        assert lamina(*at, "--ca", key).err == f"lamina: {key} holds no PEM certificate\n"
        monkeypatch.setenv("LAMINA_CA", str(certificate))
        ok(lamina(*at))
        with library.connect(service.flight_url) as store:
            assert store.topics() == []


@pytest.mark.parametrize("door", ["flight", "http", "kafka"])
def test_a_port_in_use_is_one_line(lamina: Any, tmp_path: Path, door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = dict.fromkeys(("flight", "http", "kafka"), 0) | {door: port}
        settings = [f"--set={name}.port={number}" for name, number in ports.items()]
        ran = lamina("serve", "-q", "--data", tmp_path / "data", *settings)
    assert ran.code == 3
    line = f"lamina: cannot listen on 127.0.0.1:{port}: the address is in use; choose another"
    assert f"{line} {door}.port" in ran.err
    assert "Traceback" not in ran.err


def test_a_verb_without_its_noun_is_told_where_it_belongs(lamina: Any) -> None:
    ran = lamina("consume", "orders")
    assert (ran.code, ran.out) == (2, "")
    assert "Did you mean 'topic consume'?" in ran.err
    assert "'topic describe'" in lamina("describe", "orders").err
    assert "Did you mean" not in lamina("xyzzy").err


def test_the_http_port_is_not_the_port_of_commands(lamina: Any) -> None:
    ran = lamina("topic", "list", "--server", "http://localhost:9301")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "commands talk to the Flight port: grpc://host:9300" in ran.err


def test_the_kafka_port_is_not_the_port_of_commands_and_both_ends_say_so(
    lamina: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever comes from kcat gives `-b` the port that kcat takes."""
    with served(tmp_path / "data", kafka_port=0) as service:
        ran = lamina("cat", "-b", service.kafka_address, "-L")
    (told,) = [line for line in ran.err.splitlines() if line.startswith("lamina: ")]
    assert ran.code == 3
    assert "another port than the server's Flight port, 9300 by default" in told
    assert "Kafka client without a name (127.0.0.1, key anonymous): speaks Arrow" in caplog.text


def test_numbers_of_one_are_singular(lamina: Any, tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", b"1")
    assert "1 segment," in ok(lamina("topic", "describe", "t", "--segments", *data)).out
    assert '1 topic:\n  topic "t" with 1 partition:' in ok(lamina("cat", "-L", *data)).out
    assert "1 topic\n" in ok(lamina("doctor", *data)).out


def test_pipeline_without_spark_says_what_to_install(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.open(str(tmp_path / "data")).close()
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    ran = lamina("pipeline", "profile", "t", "--data", tmp_path / "data")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'lamina[spark]'" in ran.err


def test_pipeline_refuses_a_wrong_target_before_spark_starts(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # starting it would say that it is gone
    for target in ((), ("--data", tmp_path / "missing"), ("--server", "127.0.0.1:1")):
        for command in (("profile", "t"), ("export", "t", "lake"), ("ingest", "in", "t")):
            ran = lamina("pipeline", *command, *target)
            assert ran.code in (2, 3)
            assert "pip install" not in ran.err
