"""The field: every system of the suite, in the order of the report."""

from __future__ import annotations

from benchmarks.field.embedded import Frame, Keratin, KeratinObjects, Wal
from benchmarks.field.files import ArrowFile, ParquetFiles
from benchmarks.field.kafka import Kafka, LaminaByKafka, MockBroker, TansuMemory, TansuS3
from benchmarks.field.nats_stream import Nats
from benchmarks.field.queues import LiteQueue, PersistQueue, Sqlite
from benchmarks.field.rabbit import RabbitStreams
from benchmarks.field.redis_streams import RedisStreams
from benchmarks.field.served import Served, ServedByMany, ServedOnce
from benchmarks.field.system import System

SYSTEMS: tuple[type[System], ...] = (
    *(Keratin, KeratinObjects, Frame, Wal, Served, ServedByMany, ServedOnce),
    *(LaminaByKafka, Kafka, TansuMemory, TansuS3, Nats, RedisStreams, RabbitStreams),
    *(Sqlite, PersistQueue, LiteQueue, ArrowFile, ParquetFiles, MockBroker),
)


def named(name: str) -> type[System]:
    """The system of a name."""
    return next(kind for kind in SYSTEMS if kind.name == name)
