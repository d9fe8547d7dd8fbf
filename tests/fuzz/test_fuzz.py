"""A fixed number of inputs for every decoder and every door; `make fuzz` runs more of the same."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.decoders import DECODERS
from tests.fuzz.doors import DOORS, opened
from tests.fuzz.mutation import mutate
from tests.fuzz.run import CORPUS, Broken, Judge, drawn, kept, plain_functions
from tests.fuzz.target import Target

SOURCE = Path(__file__).parents[2] / "src" / "lamina"
BINARY = [name for name, target in DECODERS.items() if not target.is_text and name != "CURRENT"]


@pytest.fixture(scope="module")
def doors() -> Iterator[None]:
    with opened(list(DOORS.values())):
        yield


@pytest.mark.parametrize("name", DECODERS)
def test_what_once_broke_a_decoder_is_judged_rightly(name: str) -> None:
    target = DECODERS[name]
    judge = Judge([target])
    assert all(target.run(seed) for seed in target.seeds()), "a sound input was refused"
    for data in kept(target):
        judge.judge(b"\0" + data)
    assert judge.inputs == len(kept(target))


@pytest.mark.parametrize("name", DOORS)
def test_what_once_broke_a_door_gets_a_typed_answer(name: str, doors: None) -> None:
    target = DOORS[name]
    taken = [target.run(seed) for seed in target.seeds()]
    assert any(taken), "no sound input was taken"
    assert not any(target.run(data) for data in kept(target)), "a bad input was taken"


def test_everything_kept_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= DECODERS.keys() | DOORS.keys()


@pytest.mark.parametrize("name", BINARY)
def test_changed_bytes_get_past_the_checksum(name: str) -> None:
    target, source = DECODERS[name], random.Random(1)
    seeds = target.seeds()
    changed = [mutate(source.choice(seeds), target, source) for _ in range(300)]
    assert sum(data not in seeds and target.run(data) for data in changed) >= 3


def test_every_module_that_decodes_is_a_target() -> None:
    tree = ast.parse((Path(__file__).parent / "decoders.py").read_text())
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    shared = {"sparse_choice", "kernels.lz4", "keratin.header", "strm.block"}
    for path in (SOURCE / "formats").rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE / "formats").with_suffix("").parts)
        names = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        decodes = any(name.startswith(("decode", "scan")) for name in names)
        if decodes and module not in shared:
            assert f"lamina.formats.{module}" in imported, f"nothing fuzzes {module}"


# ---------------------------------------------------------------- the harness sees


def broken(check: object) -> Target:
    return Target("broken", lambda: [b'{"a": 1}'], check, is_text=True)  # type: ignore[arg-type]


def test_an_untyped_error_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.fuzz.run.CORPUS", tmp_path)
    with pytest.raises(ExceptionGroup):
        drawn(Judge([broken(json.loads)]), 200, 1)
    assert list((tmp_path / "broken").iterdir()), "what broke it is kept"


def test_a_claim_that_is_believed_is_seen() -> None:
    judge = Judge([broken(lambda data: bytearray(b"x") * (len(data) << 20 if data[0] else 9))])
    judge.judge(b"\0\0")
    with pytest.raises(Broken, match="memory grew"):
        judge.judge(b"\0" + b"\1" * 300)


def test_atheris_would_look_at_plain_functions_only() -> None:
    names = {f"{each.__module__}.{each.__qualname__}" for each in plain_functions()}
    assert "lamina.formats.documents.strict_json.parse" in names
    assert "lamina.wire.messages.decode_order" in names
    assert "lamina.formats.frame.log._scan" not in names, "a kernel is compiled from its own code"


@pytest.mark.parametrize(("targets", "inputs"), [("decoders", 8000), ("doors", 450)])
def test_a_fixed_number_of_inputs_breaks_nothing(targets: str, inputs: int) -> None:
    words = ["-m", "tests.fuzz.run", "--target", targets, "--inputs", str(inputs)]
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert f"{inputs} inputs" in ended.stdout
