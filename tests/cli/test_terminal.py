"""The interactive parts through a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pexpect
import pytest

import lamina
from lamina.formats.kernels import call_size
from tests.server.rig import ServerProcess

TIMEOUT_S = 60


def spawn(*arguments: str, **variables: str) -> Any:
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"} | variables
    environment.pop("NO_COLOR", None)
    command = ["-m", "lamina.cli.main", *arguments]
    return pexpect.spawn(
        sys.executable, command, timeout=TIMEOUT_S, env=environment, dimensions=(40, 120)
    )


@pytest.fixture
def data(tmp_path: Path) -> str:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", b"first")
    return str(tmp_path / "data")


def test_lines_typed_into_produce_are_answered_one_by_one(data: str) -> None:
    terminal = spawn("topic", "produce", "t", "--data", data)
    for offset, line in enumerate(("hello", "world"), start=1):
        terminal.sendline(line)
        terminal.expect(rf"Produced to partition 0 at offset {offset} with timestamp \d{{13}}\.")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    with lamina.open(data) as store:
        assert store.fetch("t", 0, 1).column("value").to_pylist() == [b"hello", b"world"]


def test_consume_follows_a_server_until_it_is_interrupted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, lamina.connect(server.url) as store:
        store.create_topic("t")
        store.append("t", b"early")
        terminal = spawn("topic", "consume", "t", "-f", r"<%v>\n", "--server", server.url)
        terminal.expect("<early>")
        store.append("t", b"late")
        terminal.expect("<late>")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus in (1, 130) or terminal.signalstatus == signal.SIGINT


def test_a_group_is_consumed_until_it_is_interrupted_and_keeps_its_place(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, lamina.connect(server.url) as store:
        store.create_topic("t")
        store.append("t", b"early")
        terminal = spawn("cat", "-G", "g", "-f", r"<%s>\n", "t", "--server", server.url)
        terminal.expect("<early>")
        store.append("t", b"late")
        terminal.expect("<late>")
        group = store.group("t", "g", start="none")
        while group.committed() < 2:  # what was shown is acked at once
            threading.Event().wait(0.05)
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert group.describe().lag == 0
        again = spawn("cat", "-G", "g", "-e", "t", "--server", server.url)
        again.expect("Reached end of topic t")
        assert b"early" not in again.before
        again.close()


def test_serve_says_when_it_is_ready_and_ends_on_ctrl_c(data: str) -> None:
    ports = (f"--set={door}.port=0" for door in ("flight", "http", "kafka"))
    terminal = spawn(*("serve", "--data", data, *ports))
    terminal.expect(
        r"ready (grpc://127\.0\.0\.1:\d+) http://127\.0\.0\.1:\d+ kafka://127\.0\.0\.1:\d+"
    )
    url = terminal.match[1].decode()
    with lamina.connect(url) as store:
        assert store.topics() == ["t"]
    terminal.sendintr()
    terminal.expect("stopped")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_a_terminal_gets_colours_and_a_pipe_does_not(data: str) -> None:
    terminal = spawn("topic", "describe", "t", "--segments", "--data", data)
    terminal.expect(pexpect.EOF)
    shown = terminal.before.decode()
    terminal.close()
    assert "\x1b[32m█" in shown
    assert "\x1b[1m" in shown


def test_whoever_waits_for_the_compiler_is_told_why(data: str, tmp_path: Path) -> None:
    """At a terminal: a script's error stream stays clean. Little needs no compiler at all."""
    path = f"{data}/topics/t/0/segments/00000000000000000000.log"
    nowhere_else = dict.fromkeys(("XDG_CACHE_HOME", "TMPDIR"), str(tmp_path))
    little = spawn("dump", path, **nowhere_else)
    little.expect(pexpect.EOF)
    assert b"first" in little.before
    assert b"compiling" not in little.before
    with lamina.open(data) as store:
        store.append("t", [bytes(1000)] * (call_size.SMALL_CALL_BYTES // 1000))
    cold = spawn("dump", path, **nowhere_else)
    cold.expect("compiling kernels, once on this machine")
    cold.expect(pexpect.EOF)
    warm = spawn("dump", path, **nowhere_else)
    warm.expect(pexpect.EOF)
    assert b"first" in warm.before
    assert b"compiling" not in warm.before


def completed(words: str, **more: str) -> set[str]:
    """What a shell is told to complete the last of some words with."""
    program = "import sys; sys.argv[0] = 'lamina'; from lamina.cli.main import main; main()"
    asked = {"_LAMINA_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked |= {"COMP_CWORD": str(len(words.split()) - 1)}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | asked | more,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(ran.stdout.split())


def test_a_shell_completes_verbs_and_topics(data: str) -> None:
    assert completed("lamina topic de") == {
        *("describe", "delete", "delete-records"),
    }
    assert completed("lamina topic describe t", LAMINA_DATA=data) == {"t"}
    with lamina.open(data) as store:
        store.group("t", "billing")
    assert completed("lamina group de") == {"describe", "delete"}
    assert completed("lamina group describe b", LAMINA_DATA=data) == {"billing"}
