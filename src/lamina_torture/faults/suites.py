"""Rows that a suite of the source checkout makes: servers, object stores and Spark under faults.

What these break needs more than a directory: an S3 server behind a proxy that fails on purpose, a
Spark cluster whose driver and executors are killed, connections that are cut at each byte. The
suites exist; a row runs them as often as its column says, and counts what passed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import lamina
from lamina_torture.rows import Invariant, Rounds, Trial, demand, row

ROOT = Path(lamina.__file__).parents[2]
GOLDEN = tuple(
    f"tests/formats/test_{name}.py"
    for name in ("frame_files", "frame_log", "keratin_golden", "keratin_groups", "keratin_log",
                 "keratin_manifest", "strm_by_hand", "strm_hostile", "wal_control", "wal_golden",
                 "wal_snapshot")
)  # fmt: skip
"""The tests that hold golden files, and what refuses their next versions."""


def needs_suites() -> str | None:
    """Returns why there are no suites here, or None."""
    return None if (ROOT / "tests" / "fuzz").is_dir() else "only in a source checkout"


def _run(*words: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(  # noqa: S603
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def _suite(trial: Trial, invariant: Invariant, *paths: str) -> None:
    """Runs test files once a round: the quick tests only, or from two rounds on all of them."""
    for number in range(trial.rounds):
        for path in paths:
            with trial.case(f"{path}:{number}") as wanted:
                if not wanted:
                    continue
                every = ["-m", "long or not long"] if trial.rounds > 1 else []
                words = ["-m", "pytest", "-p", "no:cacheprovider", *every, path]
                code, said = _run(*words)
                found = re.search(r"(\d+) passed", said)
                trial.counts["tests"] += int(found[1]) if found else 0
                demand(code == 0 and found, invariant, f"{path} fails: {said[-1500:]}")


@row(
    "F19",
    "connections",
    formats=("server",),
    invariants="I1 I10 I12",
    rounds=Rounds(None, 1, 20),
    needs=needs_suites,
)
def connections(trial: Trial) -> None:
    """Connections are cut at every byte, stand still, or bring garbage and huge lengths."""
    _suite(trial, "I12", "tests/server/test_cut.py", "tests/server/test_hostile.py")


@row(
    "F21",
    "fuzz",
    formats=("decoders", "doors"),
    invariants="I2 I10 I12",
    rounds=Rounds(None, 20_000, 1_000_000),
    needs=needs_suites,
)
def fuzz(trial: Trial) -> None:
    """Changed bytes with checksums that fit, for every decoder and both doors; atheris leads."""
    inputs = trial.rounds if trial.format == "decoders" else trial.rounds // 20
    with trial.case(trial.format) as wanted:
        if wanted:
            words = ("--target", trial.format, "--inputs", str(inputs), "--seed", str(trial.seed))
            code, said = _run("-m", "tests.fuzz.run", *words)
            demand(code == 0, "I12", said[-1500:])
            trial.counts["inputs"] += inputs


@row(
    "F13",
    "reserve",
    formats=("store",),
    invariants="I8 I12",
    rounds=Rounds(None, 1, 10),
    needs=needs_suites,
)
def reserve(trial: Trial) -> None:
    """Trims and deletions on a full disk use the store's reserve, while others want its room."""
    _suite(trial, "I12", "tests/store/test_io_errors.py")


@row(
    "F20",
    "derived",
    formats=("wal",),
    invariants="I9",
    rounds=Rounds(None, 1, 10),
    needs=needs_suites,
)
def derived(trial: Trial) -> None:
    """Derived files of wal topics are lost, cut or changed, one of them after the other."""
    _suite(trial, "I9", "tests/wal/test_derived_files.py")


@row(
    "F22",
    "object-store",
    formats=("tier",),
    invariants="I1 I2 I8 I12",
    rounds=Rounds(None, 1, 10),
    needs=needs_suites,
)
def object_store(trial: Trial) -> None:
    """An S3 server behind a proxy that fails, hangs up and lies; uploaders that are killed."""
    paths = (
        "tests/archive/test_s3.py",
        "tests/archive/test_crash.py",
        "tests/archive/test_seam.py",
    )
    _suite(trial, "I1", *paths)


@row(
    "F27",
    "golden",
    formats=("files",),
    invariants="I2 I12",
    rounds=Rounds(None, 1, 1),
    needs=needs_suites,
)
def golden(trial: Trial) -> None:
    """Every golden file is read and written byte for byte, and refused in a version to come."""
    _suite(trial, "I2", *GOLDEN)


@row(
    "F27",
    "upgrade",
    formats=("files",),
    invariants="I1 I6 I9",
    rounds=Rounds(None, 1, 1),
    needs=needs_suites,
)
def upgrade(trial: Trial) -> None:
    """A directory of the release before, closed or killed, is opened: all of it is there."""
    _suite(trial, "I1", "tests/store/test_upgrade.py")


@row(
    "F27",
    "strange",
    formats=("files",),
    invariants="I1 I3 I4 I5 I7 I8 I12",
    rounds=Rounds(None, 1, 1),
    needs=needs_suites,
)
def strange(trial: Trial) -> None:
    """Files that are foreign, newer, overlapping, swapped or lost are told, and never cut."""
    _suite(
        trial,
        "I4",
        "tests/log/test_strange_files.py",
        "tests/wal/test_strange_files.py",
        "tests/store/test_identity.py",
    )


@row(
    "F24",
    "spark-source",
    formats=("spark",),
    invariants="I11",
    rounds=Rounds(None, 1, 2),
    needs=needs_suites,
)
def spark_source(trial: Trial) -> None:
    """Spark's tasks fail and repeat, its executors are killed, queries restart and go on."""
    _suite(trial, "I11", "tests/spark/test_cluster.py", "tests/spark/test_streaming.py")


@row(
    "F25",
    "spark-sink",
    formats=("spark",),
    invariants="I11",
    rounds=Rounds(None, 1, 2),
    needs=needs_suites,
)
def spark_sink(trial: Trial) -> None:
    """Spark's driver is killed at steps of staging and of our commit, and the query goes on."""
    _suite(trial, "I11", "tests/spark/test_killed_driver.py", "tests/spark/test_transactions.py")
