"""Mutants of the Kafka door: each promise to Kafka clients, broken in one place."""

from __future__ import annotations

from tests.torture.catching import Mutant

KAFKA_MUTANTS = (
    Mutant(
        "kafka-lying-ack",
        "acks=all of a Kafka client waits for the fsync",
        "server/kafka/producing.py",
        '_ACKS = {0: "0", 1: "1", -1: "all"}\n',
        '_ACKS = {0: "0", 1: "1", -1: "1"}\n',
        ("F3/kafka:keratin:1",),
    ),
    Mutant(
        "kafka-commit-lost",
        "a group's offset is journalled before the commit is answered",
        "groups/coordinator.py",
        "            return self.offsets.enqueue(group, offsets)\n",
        "            queued = self.offsets.enqueue(group, offsets)\n"
        "            self.offsets._queue.remove(queued)\n"
        "            for entry in queued.entries:\n"
        "                self.offsets._groups.apply(entry)\n"
        "            queued.is_done = True\n"
        "            return queued\n",
        ("F1/kafka:keratin:1",),
    ),
    Mutant(
        "kafka-sequence-forgotten",
        "the sequences of idempotent producers are known again after a restart",
        "log/producers.py",
        "        for entry in entries:\n            self._remember(entry)\n"
        "        self.compact()\n",
        "        self.compact()\n",
        ("F1/kafka:keratin:2",),
    ),
    Mutant(
        "kafka-assignment-twice",
        "each member of a generation gets its own share",
        "groups/membership.py",
        '            member.assignment = assignments.get(member.id, b"")\n',
        '            member.assignment = next(iter(assignments.values()), b"")\n',
        ("F1/kafka:keratin:1",),
    ),
)
