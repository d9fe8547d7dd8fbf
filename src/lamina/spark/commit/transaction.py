"""Committing a transaction of the sink exactly once: the argument, and the code that follows it.

    stage (tasks) ─▶ decide: commit.json ─▶ store: idempotent appends ─▶ state.json ─▶ sweep

Everything here is done by one process, one transaction at a time: the one that has the store open,
or, for a server, the one that has the lock of the staging directory.

*Nothing is stored before it is decided.* `commit.json` is written in one atomic, durable step, and
names every part with checksums. Until it is there, parts are bytes that nobody reads.

*What is decided is stored, once.* Rows of a transaction go to a partition in one fixed order, the
order of its runs. They are appended as an idempotent producer whose id is the application, whose
epoch is the transaction's number, and whose sequence is the row's place in that order. The
producers' journal of the partition makes the place durable together with the rows: after a crash it
says exactly how many of them are stored, and storing goes on behind them, however long after: the
producer's id is one that does not expire (`engine.producers`). They are synced whatever the topic's
own durability, because `state.json` will say that they are there. Whoever has the store
next finds the `commit.json` and goes on, before anything else of that application is decided.

*A repeat does nothing.* A number is stored when `state.json` says so or a higher one does; a repeat
finds it there, or finds the `commit.json` and finishes that one. Its own parts are not used.

| killed                              | left behind                  | the next one                |
|-------------------------------------|------------------------------|-----------------------------|
| while a task stages                 | a part nobody names          | sweeps it                   |
| before `commit.json` is there       | parts nobody names           | stages and decides again    |
| while rows are stored               | `commit.json`, some rows     | stores the rest             |
| before `state.json` is there        | `commit.json`, all rows      | finds all stored, goes on   |
| while parts are swept               | some parts, the new state    | sweeps the rest             |

A topic that was deleted since the decision takes its rows with it, as if they had been stored.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeAlias, TypeVar

import pyarrow as pa

from lamina.api import ProducerStamp, StoreApi
from lamina.errors import CorruptData, Fenced, InvalidRequest
from lamina.formats.documents import topic_file
from lamina.formats.documents.sink_transaction import (
    Part,
    Run,
    State,
    Transaction,
    decode_state,
    decode_transaction,
    encode_state,
    encode_transaction,
)
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.log.producers import TRANSACTIONAL
from lamina.received import unpacked_message
from lamina.records import INPUT_SCHEMAS
from lamina.spark.commit.staging import Staging
from lamina.storage import paths
from lamina.storage.files import Files

LOGGER = logging.getLogger("lamina.spark")
COMMIT, STATE = paths.SINK_COMMIT, paths.SINK_STATE
APPEND_BYTES = 4 << 20
KEPT_MS = 86_400_000
"""How long parts of a transaction that was never decided are kept: a day, longer than any task."""
NUMBER_END = 1 << 32
_THREADS = 4

_Value = TypeVar("_Value")
Place: TypeAlias = tuple[str, int, int]
"""A topic, its epoch, and a partition."""
TopicOf: TypeAlias = Callable[[str], TopicFile | None]
"""Returns what is known of a topic now, from its file or a server; None if there is none."""


def producer_of(application: str) -> int:
    """Returns the producer that an application's rows are appended by; one that does not expire."""
    return xxh3_of(b"lamina sink " + application.encode()) >> 2 | TRANSACTIONAL


def former_producer_of(application: str) -> int:
    """Returns the producer of earlier versions: what it has begun to store, it finishes."""
    return xxh3_of(b"lamina sink " + application.encode()) >> 1


class Publisher:
    """Decides and stores transactions; for the process that has the store open."""

    def __init__(
        self,
        store: StoreApi,
        files: Files,
        data: str,
        now_ms: Callable[[], int],
        topic_of: TopicOf | None = None,
    ) -> None:
        self._store = store
        self._files = files
        self._data = data
        self._now_ms = now_ms
        self._topic_of = topic_of or functools.partial(_topic_file, files, data)

    def settle(self, transaction: Transaction) -> bool:
        """Makes a transaction stored; returns False if it, or a later one, was before."""
        if not 0 <= transaction.number < NUMBER_END:
            raise InvalidRequest(f"transactions are numbered below {NUMBER_END}")
        self._go_on(transaction.application)
        state = self._state(transaction.application)
        if state is not None and state.query != transaction.query:
            raise InvalidRequest(
                f"txnAppId {transaction.application!r} belongs to another query: its numbers start"
                " again with a new checkpoint, so give the new query a txnAppId of its own"
            )
        is_new = state is None or transaction.number > state.number
        if is_new:
            self._decide(transaction)
            self._finish(transaction)
        self._sweep_application(transaction.application)
        return is_new

    def go_on(self) -> None:
        """Finishes what was decided before a crash, and sweeps what was not."""
        for name in self._files.list(self._path(paths.SINK)):
            application = paths.sink_application(name)
            if application is not None:
                self._go_on(application)
                self._sweep_application(application)

    # ------------------------------------------------------------------ the steps

    def _decide(self, transaction: Transaction) -> None:
        """Proves that every part is whole and can be stored, then commits: it will be stored."""
        self._check(transaction)
        place = self._place(transaction)
        self._files.make_directory(place.directory)
        path = paths.join(place.directory, COMMIT)
        self._files.replace(path, encode_transaction(transaction))

    def _finish(self, transaction: Transaction) -> None:
        """Stores what is not stored yet of a decided transaction, and remembers that it is."""
        runs = [(part, run) for part in transaction.parts for run in part.runs]
        runs.sort(key=lambda each: _place_of(each[1]))  # stable: each place keeps its order
        places = [(place, list(some)) for place, some in groupby(runs, lambda e: _place_of(e[1]))]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-publish") as pool:
            work = [pool.submit(self._append, transaction, *each) for each in places]
            for each in work:
                each.result()
        state = State(transaction.application, transaction.number, transaction.query)
        folder = self._path(paths.sink_directory(transaction.application))
        self._files.replace(paths.join(folder, STATE), encode_state(state))

    def _go_on(self, application: str) -> None:
        """Finishes the decided transactions of an application, oldest first."""
        state = self._state(application)
        for number in self._numbers(application):
            path = paths.join(self._folder(application, number), COMMIT)
            if self._files.exists(path) and (state is None or number > state.number):
                self._finish(_decoded(decode_transaction, self._files, path))

    def _append(self, transaction: Transaction, place: Place, runs: list[tuple[Part, Run]]) -> None:
        """Appends what a partition does not have yet of its rows, in their order."""
        topic, epoch, partition = place
        about = self._topic_of(topic)
        if about is None or about.deleted or about.epoch != epoch:
            LOGGER.warning("topic %s was deleted; rows for it are dropped", topic)
            return
        producer_id, known = self._producer(transaction, topic, partition)
        stored = 0
        if known is not None and known[0] == transaction.number:
            stored = known[1]
        elif known is not None and known[0] > transaction.number:
            raise Fenced(
                f"{topic}/{partition} holds transaction {known[0]} of"
                f" {transaction.application!r}, which is later than {transaction.number}"
            )
        schema = INPUT_SCHEMAS[about.format]
        for sequence, records in _chunks(self._records(transaction, runs, schema), stored):
            stamp = ProducerStamp(producer_id, transaction.number, sequence)
            self._store.append(topic, records, partition=partition, acks="all", producer=stamp)

    def _producer(
        self, transaction: Transaction, topic: str, partition: int
    ) -> tuple[int, tuple[int, int] | None]:
        """Returns who stores a transaction, and what is known of it: a number, how many rows."""
        producer_id = former_producer_of(transaction.application)
        known = self._store.producer_position(topic, partition, producer_id)
        if known is not None and known[0] >= transaction.number:
            return producer_id, known
        producer_id = producer_of(transaction.application)
        return producer_id, self._store.producer_position(topic, partition, producer_id)

    def _records(
        self, transaction: Transaction, runs: list[tuple[Part, Run]], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Reads runs in order, each checked before a row of it is used."""
        for name, some in groupby(runs, lambda each: each[0].name):
            path = paths.join(self._place(transaction).directory, name)
            view = self._mapped(path)
            for _, run in some:
                yield _rows(_message(view, run, path), run, schema, path)

    def _check(self, transaction: Transaction) -> None:
        """Reads every row that is to be stored, so that nothing is decided that cannot be."""
        for part in transaction.parts:
            if part.runs:
                path = paths.join(self._place(transaction).directory, part.name)
                view = self._mapped(path)
                for run in part.runs:
                    message, about = _message(view, run, path), self._topic_of(run.topic)
                    if about is not None:
                        _rows(message, run, INPUT_SCHEMAS[about.format], path)

    def _mapped(self, path: str) -> memoryview:
        try:
            file = self._files.open_read_only(path)
        except FileNotFoundError as error:
            raise CorruptData("a staged part is gone; write again", path=path) from error
        try:
            return memoryview(file.load())
        finally:
            file.close()

    # ------------------------------------------------------------------ what is there

    def _path(self, name: str) -> str:
        return paths.join(self._data, name)

    def _place(self, transaction: Transaction) -> Staging:
        return Staging(self._files, self._data, transaction.application, transaction.number)

    def _folder(self, application: str, number: int) -> str:
        return paths.join(self._path(paths.sink_directory(application)), str(number))

    def _state(self, application: str) -> State | None:
        path = paths.join(self._path(paths.sink_directory(application)), STATE)
        return _decoded(decode_state, self._files, path) if self._files.exists(path) else None

    def _numbers(self, application: str) -> list[int]:
        names = self._files.list(self._path(paths.sink_directory(application)))
        return sorted(int(name) for name in names if name.isdecimal())

    def _sweep_application(self, application: str) -> None:
        """Removes parts of transactions that are stored, and old ones of those never decided."""
        state = self._state(application)
        for number in self._numbers(application):
            folder = self._folder(application, number)
            if state is not None and number <= state.number:
                self._remove(folder, lambda _: True)
            elif not self._files.exists(paths.join(folder, COMMIT)):
                self._remove(folder, self._is_old)

    def _is_old(self, name: str) -> bool:
        staged_ms = name.partition("-")[0]
        return staged_ms.isdecimal() and self._now_ms() - int(staged_ms) > KEPT_MS

    def _remove(self, folder: str, goes: Callable[[str], bool]) -> None:
        """Removes files of a transaction, its commit last, and the directory if it is empty.

        A task that still runs may add a part meanwhile: then the directory stays for another time.
        """
        names = self._files.list(folder)
        for name in sorted(names, key=lambda each: each == COMMIT):
            if goes(name):
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(paths.join(folder, name))
        with contextlib.suppress(OSError):
            self._files.remove_directory(folder)


def _place_of(run: Run) -> Place:
    return run.topic, run.epoch, run.partition


def _topic_file(files: Files, data: str, topic: str) -> TopicFile | None:
    path = paths.join(data, paths.TOPICS, paths.topic_name(topic), paths.TOPIC_SETTINGS)
    return _decoded(topic_file.decode, files, path) if files.exists(path) else None


def _decoded(decode: Callable[[bytes], _Value], files: Files, path: str) -> _Value:
    try:
        return decode(files.read(path))
    except CorruptData as error:
        raise error.at_path(path) from error


def _message(view: memoryview, run: Run, path: str) -> memoryview:
    """Returns the bytes of a run; raises CorruptData if they are not what its task wrote."""
    message = view[run.position : run.position + run.length]
    found = crc32c_of(message) if message.nbytes == run.length else -1
    if found != run.crc32c:
        raise CorruptData(
            "a staged part is damaged; nothing of it was stored, write again",
            path=path,
            position=run.position,
            expected=str(run.crc32c),
            found=str(found),
        )
    return message


def _rows(message: memoryview, run: Run, schema: pa.Schema, path: str) -> pa.RecordBatch:
    """Reads a run's rows; raises CorruptData for any that nothing else may touch.

    A checksum only says that the bytes are those that somebody wrote. Offsets and lengths inside of
    them are believed by Arrow's own code, so they are checked first, in full.
    """
    try:
        batch = unpacked_message(pa.py_buffer(message), schema, run.length)
    except InvalidRequest as error:
        problem = f"a staged part is no record batch: {error}"
        raise CorruptData(problem, path=path, position=run.position) from error
    if batch.num_rows != run.rows:
        raise CorruptData(
            "a staged part has other rows than its commit says",
            path=path,
            position=run.position,
            expected=f"{run.rows} rows",
            found=f"{batch.num_rows} rows",
        )
    return batch


def _chunks(batches: Iterator[pa.RecordBatch], stored: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Joins and cuts rows into appends, without the first `stored` ones; each with its sequence."""
    sequence = 0
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        skipped = min(max(stored - sequence, 0), batch.num_rows)
        sequence += batch.num_rows
        if skipped == batch.num_rows:
            continue
        held.append(batch.slice(skipped))
        size, rows = size + batch.nbytes, rows + batch.num_rows - skipped
        if size >= APPEND_BYTES:
            yield sequence - rows, pa.concat_batches(held)
            held, size, rows = [], 0, 0
    if held:
        yield sequence - rows, pa.concat_batches(held)
