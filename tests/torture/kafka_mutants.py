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
    Mutant(
        "group-moves-at-once",
        "what a member still has is given to nobody else before it gave that up",
        "client/assignors.py",
        "        if all(claimant == member for _, claimant in claims.get((topic, number), ())):\n"
        "            shares",
        "        if True:\n            shares",
        ("tests/client/test_assignors.py",),
    ),
    Mutant(
        "transaction-lying-commit",
        "fsync of a transaction's file before its commit is answered",
        "store/staged_transaction.py",
        "            self._file.sync()\n",
        "",
        ("F4/transactions:keratin:60",),
    ),
    Mutant(
        "transaction-forgotten",
        "what was committed and not stored is stored by the next opening",
        "store/transactions.py",
        "                self._store_again(known, found, report)\n",
        "                self._files.remove(found)\n",
        ("F4/transactions:keratin:60",),
    ),
    Mutant(
        "transaction-goes-on",
        "the beginning of a transaction is written down before it is answered",
        "store/transactions.py",
        "            self._write([], at, Standing.ONGOING)\n",
        "            pass\n",
        ("F4/transactions:keratin:60",),
    ),
    Mutant(
        "transaction-stored-again",
        "a transaction that is done is not stored again by the next opening",
        "store/transaction_states.py",
        "        return self.number > number or (self.number == number and"
        " self.state is not State.DROPPED)\n",
        "        return False\n",
        ("F4/transactions:keratin:120",),
    ),
    Mutant(
        "transaction-abort-stored",
        "records of an aborted transaction enter no log",
        "store/transactions.py",
        "            if not commit:\n",
        "            if not commit and at.state is State.DROPPED:\n",
        ("F1/transactions:keratin:1",),
    ),
)
