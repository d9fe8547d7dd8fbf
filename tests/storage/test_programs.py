"""Programs that are written for this user: once, and only where nobody else could have."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from lamina.storage import programs


def test_a_program_is_written_once_and_again_only_where_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = Path(programs.write("tests", "hello", "#!/bin/sh\necho hello\n"))
    assert path.read_text() == "#!/bin/sh\necho hello\n"
    assert programs.can_run(str(path))
    first = path.stat().st_ino
    assert programs.write("tests", "hello", path.read_text()) == str(path)
    assert path.stat().st_ino == first, "it is there already, and may be running"
    assert programs.write("tests", "hello", "another") == str(path)
    assert path.read_text() == "another"
    assert os.listdir(path.parent) == ["hello"]


def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = programs.own_directory("tests")
    assert own is not None
    os.chmod(own, 0o722)
    assert programs.own_directory("tests") is None
    assert not programs.write("tests", "hello", "text").startswith(f"{own}/")
