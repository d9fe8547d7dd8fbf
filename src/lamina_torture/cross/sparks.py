"""Users on Spark: reading by the source, and every job of `lamina pipeline`, in one session."""

from __future__ import annotations

import functools
import importlib
import json
from typing import TYPE_CHECKING, Any

from lamina.errors import LaminaError
from lamina_torture.cross.commands import run
from lamina_torture.cross.ground import EVERYWHERE, Ground, Saw
from lamina_torture.cross.templates import TAG, TOPIC
from lamina_torture.rows import demand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@functools.cache
def session() -> SparkSession:
    """Starts Spark, once a process."""
    made: SparkSession = importlib.import_module("lamina.spark").session(
        master="local[2]", config=QUICK
    )
    made.sparkContext.setLogLevel("OFF")
    return made


def _read(ground: Ground, **options: str) -> dict[tuple[str, int], bytes]:
    reader = session().read.format("lamina").option("path", ground.data)
    reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    rows = reader.options(**options).load().select("offset", "value").collect()
    return {(TOPIC, row["offset"]): bytes(row["value"]) for row in rows}


def spark_read(ground: Ground) -> Saw:
    """A batch read: all that has a sound copy, or an error; without losses only when asked so."""
    out_of_reach = ground.known(EVERYWHERE, (TOPIC,)) - ground.expected(EVERYWHERE, (TOPIC,))
    saw = Saw(topics=(TOPIC,))
    try:
        saw.served = _read(ground)
    except Exception as error:
        _check_named(error)
        demand(
            out_of_reach or ground.damaged.kind == "newer" or ground.damaged.is_identity,
            "I11",
            f"all records have sound copies, and Spark fails: {str(error)[-300:]}",
        )
        saw.served = None
    if saw.served is None and ground.damaged.kind not in ("newer", "eio"):
        saw.served = _read(ground, failOnDataLoss="false")
        saw.told = set(ground.template.records)  # it was asked not to be told
    return saw


def _check_named(error: Exception) -> None:
    """What Spark raises carries Lamina's own words: which records, which file."""
    names = [kind.__name__ for kind in _families(LaminaError)]
    demand(any(name in str(error) for name in names), "I12", f"untyped: {str(error)[-400:]}")


def _families(kind: type[LaminaError]) -> list[type[LaminaError]]:
    return [kind, *(below for each in kind.__subclasses__() for below in _families(each))]


def _job(ground: Ground, *words: str) -> Saw:
    session()
    saw = run("pipeline", *words, "--data", ground.data, "--json")
    saw.refused = None
    return saw


def export(ground: Ground) -> Saw:
    """`lamina pipeline export`: with exit 0, all that has a sound copy is in the files."""
    target = str(ground.root / "exported")
    saw = _job(ground, "export", TOPIC, target)
    if saw.code == 0:
        rows = session().read.parquet(target).select("offset", "value").collect()
        saw.served = {(TOPIC, row["offset"]): bytes(row["value"]) for row in rows}
    saw.topics = (TOPIC,)
    return saw


def profile(ground: Ground) -> Saw:
    """`lamina pipeline profile`: with exit 0, it has counted all that has a sound copy."""
    saw = _job(ground, "profile", TOPIC)
    if saw.code == 0:
        lines = [json.loads(line) for line in saw.output.splitlines() if line.startswith("{")]
        counted = max((int(row["records"]) for row in lines if "records" in row), default=None)
        wanted = len(ground.known(EVERYWHERE, (TOPIC,)))
        demand(counted is None or counted >= wanted, "I11", f"exit 0, and {counted} of {wanted}")
    return saw


def job_verify(ground: Ground) -> Saw:
    """`lamina pipeline verify`: finds what `lamina verify` finds, in the archive as well."""
    saw = _job(ground, "verify")
    saw.is_finder = True
    return saw


def repair(ground: Ground) -> Saw:
    """`lamina pipeline repair --yes`: nothing that has a sound copy is called lost."""
    return _job(ground, "repair", "--yes")


def erase(ground: Ground) -> Saw:
    """`lamina pipeline erase --yes`: exactly the chosen go, from every tier that is whole."""
    option = "--tag" if ground.template.format == "wal" else "--key"
    saw = _job(ground, "erase", option, TAG.decode(), "--yes")
    tagged = ground.template.tagged
    saw.removed = lambda record: _is_tagged(record, tagged, ground)
    return saw


def _is_tagged(record: tuple[str, int], tagged: frozenset[int], ground: Ground) -> bool:
    topic, offset = record
    return offset in tagged if topic == TOPIC else TAG in _labels(ground, record)


def _labels(ground: Ground, record: Any) -> tuple[bytes, ...]:
    """The neighbour's rows are labelled as the topic's are: every seventh of an append."""
    value = ground.template.records.get(record, b"")  # whoever asks for any offset gets no label
    number = int(value.split(b" ")[1]) if value[:1] == b"n" else 0
    return (TAG,) if number % 7 == 3 else ()


def job_archive(ground: Ground) -> Saw:
    """`lamina pipeline archive`."""
    return _job(ground, "archive")


def compact(ground: Ground) -> Saw:
    """`lamina pipeline compact`, with what it replaced removed at once."""
    return _job(ground, "compact", "--clean-age-ms", "0")


def convert(ground: Ground) -> Saw:
    """`lamina pipeline convert` and `replay` into topics of their own."""
    saw = _job(ground, "convert", TOPIC, "converted", "--format", "keratin", "--skip-lost")
    _job(ground, "replay", TOPIC, "replayed", "--offset", ":end", "--skip-lost")
    return saw
