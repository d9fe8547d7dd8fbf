"""Brokers of one cluster in one process: each has a disk of its own, and all have one bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from lamina.cluster.lease import Identity, Watch
from lamina.cluster.steps import run
from lamina.cluster.tails import Takeover, take_over
from lamina.errors import LaminaError
from lamina.storage.objects import Objects
from lamina.store.seat import Seat
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import TOPIC, opened, values

TTL_MS = 15_000
NEVER_MS = 1 << 30
SETTINGS = {"segment.bytes": 1024, "archive.object.bytes": 1024, "archive.delay.ms": 0}


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def taken_by(objects: Objects, name: str, clock: Callable[[], int]) -> Takeover:
    """Takes a cluster over, whoever has it."""
    watch = Watch()
    run(objects, watch.look(clock))
    return run(objects, take_over(watch, Identity(name, f"grpc://{name}", TTL_MS), clock))


Brokers: TypeAlias = Callable[[], "Broker"]
"""Makes one more machine of the cluster."""


class Broker:
    """A machine of a cluster: its disk outlives its process."""

    def __init__(self, objects: Objects, name: str, clock: Callable[[], int]) -> None:
        self.objects, self.name, self.clock = objects, name, clock
        self.files = SimulatedFiles()
        self.fenced: list[LaminaError] = []
        self.seat: Seat | None = None

    def serve(self, taken: Takeover | None = None, tail_ms: int = NEVER_MS, **more: Any) -> Store:
        """Takes the cluster over and opens the store; nothing is shipped by itself."""
        taken = taken or taken_by(self.objects, self.name, self.clock)
        self.seat = Seat(taken, self.clock, tail_ms=tail_ms, on_fenced=self.fenced.append)
        return opened(self.files, self.objects, seat=self.seat, **more)

    def ship(self) -> None:
        """Ships what is durable now."""
        assert self.seat is not None
        assert self.seat.shipper is not None
        self.seat.shipper.ship()

    def lose_power(self) -> None:
        """Ends the process at once, and keeps of the disk what was synced."""
        self.files = self.files.snapshot().crash("dropped")


def filled(store: Store, first: int, count: int, acks: Any = "all") -> None:
    """Appends numbered values, one by one."""
    for value in values(first, count):
        store.append(TOPIC, value, partition=0, acks=acks)


def collected(broker: Broker) -> None:
    """Ships and collects until nothing changes any more."""
    assert broker.seat is not None
    assert broker.seat.shipper is not None
    for _ in range(4):
        broker.ship()
        broker.seat.shipper.collector.collect(broker.objects)
