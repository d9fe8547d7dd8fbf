"""No command shows a traceback, whatever is wrong: one line, and the exit code of its family."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.cli import main as cli
from tests.cli.test_options import ALL, PLACED, options

ORDER = str(Path(__file__).parent / "order.avsc")
NEEDS: dict[str, list[str]] = {
    **{
        "topic create": ["new"],
        "topic describe": ["t"],
        "topic alter": ["t", "-c", "segment.ms=9"],
    },
    **{"topic add-partitions": ["t", "--total", "4"], "topic delete": ["t", "--yes"]},
    **{"topic produce": ["t"], "topic consume": ["t", "-o", ":end"]},
    **{"topic trim": ["t", "--before", "1"], "topic delete-records": ["t", "--before", "1"]},
    **{"topic retention": ["t"], "group describe": ["g"], "group seek": ["g", "--to", "start"]},
    **{"group delete": ["g"], "router create": ["r", "t", "u"], "router alter": ["r"]},
    **{"router delete": ["r"], "segment list": ["t"], "cat": ["-L"]},
    **{"schema set": ["t", ORDER], "schema list": ["t"], "schema show": ["typed"]},
    **{"sql": ["select 1 from t"], "bench": ["--seconds", "0.1"]},
}
SPARK = [command for command in ALL if command.startswith("pipeline ")]
TARGETED = [each for each in ALL if options(each) >= PLACED and each not in SPARK]


def call(command: str) -> list[str]:
    return [*command.split(), *NEEDS.get(command, [])]


def one_line(ran: Any, *codes: int) -> None:
    assert ran.code in codes, ran
    assert "Traceback" not in ran.err + ran.out
    assert "defect of Lamina" not in ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("lamina: ")]) <= 1


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        return f"127.0.0.1:{there.getsockname()[1]}"


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize("command", TARGETED)
def test_a_dead_server_is_refused_at_once(
    lamina: Any, nobody: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s for a server that is not there")

    monkeypatch.setattr("lamina.client.connection.time.sleep", never)
    ran = lamina(*call(command), "--server", nobody)
    one_line(ran, 1 if command == "doctor" else 3)
    assert "nothing listens there" in ran.err + ran.out


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize("command", TARGETED)
def test_a_directory_that_is_none_is_one_line(lamina: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years of work")
    for name in ("missing", "foreign", "foreign/thesis.txt"):
        ran = lamina(*call(command), "--data", tmp_path / name)
        makes = command in ("topic create", "bench") and name == "missing"
        one_line(ran, *((0,) if makes else (1, 2, 3)))
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["thesis.txt"]


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize("command", TARGETED)
def test_a_directory_in_use_is_one_line_or_read_beside_its_writer(
    lamina: Any, tmp_path: Path, command: str
) -> None:
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t", partitions=2)
        store.group("t", "g")
        one_line(lamina(*call(command), "--data", tmp_path / "data"), 0, 2, 3)


@pytest.mark.parametrize("command", TARGETED)
def test_no_target_and_two_targets_are_refused(
    lamina: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LAMINA_DATA", "LAMINA_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    one_line(lamina(*call(command)), 2)
    one_line(lamina(*call(command), "--data", "d", "--server", "s:1"), 2)


@pytest.mark.parametrize("command", ALL)
def test_a_wrong_option_is_a_wrong_call(lamina: Any, command: str) -> None:
    ran = lamina(*command.split(), "--no-such-option")
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_an_option_beats_the_variable_of_the_other(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.open(str(tmp_path / "data")).close()
    monkeypatch.setenv("LAMINA_SERVER", "127.0.0.1:1")
    assert lamina("topic", "list", "--data", tmp_path / "data").code == 0


def test_what_nobody_expects_is_one_line_and_a_traceback_only_if_asked_for(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("lamina.cli.topic_commands.readable", fail)
    ran = lamina("topic", "list", "--data", tmp_path)
    assert ran.code == cli.DEFECT
    assert ran.err.startswith("lamina: unexpected ZeroDivisionError: division by zero.")
    assert ran.err.count("\n") == 1
    monkeypatch.setenv(cli.TRACEBACK, "1")
    monkeypatch.setattr(sys, "argv", ["lamina", "topic", "list", "--data", str(tmp_path)])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_an_interrupt_ends_with_130_and_no_traceback(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lamina.cli.topic_commands.readable", interrupted)
    assert lamina("topic", "list", "--data", tmp_path)[:] == (130, "", "")


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        (
            "{lamina} topic consume t -o :end --data {data} | head -1; exit ${{PIPESTATUS[0]}}",
            0,
            "",
        ),
        ("{lamina} topic list --data {data} >&-", 0, ""),
        ("{lamina} topic list --data {data} >/dev/full", 3, "No space left on device"),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(
    tmp_path: Path, shell: str, code: int, said: str
) -> None:
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [b"x" * 1000] * 2000)
    program = f"{sys.executable} -m lamina.cli.main"
    script = shell.format(lamina=program, data=tmp_path / "data")
    ran = subprocess.run(
        ["bash", "-c", script], check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == code
    assert said in ran.stderr
    assert ran.stderr.count("\n") == (1 if said else 0)
