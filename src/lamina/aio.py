"""A store for asyncio: every call of a store and of a group, awaited.

    from lamina import aio

    async with aio.open("data") as store:              # or aio.connect("grpc://localhost:9300")
        await store.append("orders", [b"first"])       # any number of tasks at once
        async for batch in store.scan("orders"):
            ...
        group = await store.group("orders", "billing")
        held = await group.poll(100, wait_ms=1_000)
        await group.ack(held)

The engine has one API, which blocks; this adapter runs its calls on threads of its own. Signatures
and contracts are those of `StoreApi` and `GroupApi`: a line of a class here names the method that
answers, and the type checker knows the rest. `append` is the exception: it needs no thread.

Rules.
1. Backpressure is waiting. At most `threads` calls are at work; others queue, and none is refused.
   Calls that wait for records have threads of their own, and give them up twice a second: waiting
   consumers never keep an ack from being made.
2. Cancelling ends the waiting at once. A call that a thread has begun goes on to its end unheard,
   as with a client whose connection broke; what it polled is given back, what it opened is closed,
   and a stream ends. An append that is not being written yet is taken back.
3. A stream reads one batch at a time, when it is asked for; one task at a time asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import pyarrow as pa

import lamina
from lamina.api import GroupApi, Portrait, Shown, Skipped, Start, StoreApi
from lamina.arguments import Location
from lamina.errors import Closed, LaminaError

THREADS = 32
SLICE_MS = 500
"""How long a thread waits for records before it is free for another call."""
_END = object()

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class Threads:
    """The threads of an adapter: some for calls that work, as many for calls that wait."""

    def __init__(self, count: int) -> None:
        self._working = ThreadPoolExecutor(count, thread_name_prefix="lamina-aio")
        self._waiting = ThreadPoolExecutor(count, thread_name_prefix="lamina-aio-wait")
        self.is_closed = False

    def begin(
        self, action: Callable[[], _Result], *, waits: bool = False
    ) -> tuple[Future[_Result], Awaitable[_Result]]:
        """Begins a call; returns it, and what to await for its answer."""
        if self.is_closed:
            raise Closed("the store is closed")
        future = (self._waiting if waits else self._working).submit(action)
        return future, asyncio.wrap_future(future)

    async def run(self, action: Callable[[], _Result]) -> _Result:
        """Runs a call that works."""
        return await self.begin(action)[1]

    async def run_or_undo(
        self, action: Callable[[], _Result], undo: Callable[[_Result], object], *, waits: bool
    ) -> _Result:
        """Runs a call; where nobody waits for its answer any more, undoes it."""
        future, answer = self.begin(action, waits=waits)
        try:
            return await answer
        except asyncio.CancelledError:
            future.add_done_callback(functools.partial(_undo, undo))
            raise

    def close(self) -> None:
        """Refuses further calls; those at work end by themselves."""
        self.is_closed = True
        for pool in (self._working, self._waiting):
            pool.shutdown(wait=False)


def _undo(undo: Callable[[Any], object], done: Future[Any]) -> None:
    """Undoes what a call did that was cancelled; one that failed, or never began, did nothing."""
    if not done.cancelled() and done.exception() is None:
        with contextlib.suppress(LaminaError):
            undo(done.result())


def _awaited(
    method: Callable[Concatenate[Any, _Given], _Result],
) -> Callable[Concatenate[Any, _Given], Coroutine[Any, Any, _Result]]:
    """Makes the awaited twin of a method."""

    @functools.wraps(method)
    async def call(self: Any, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        found: Callable[_Given, _Result] = getattr(self._target, method.__name__)
        threads: Threads = self._threads
        return await threads.run(functools.partial(found, *given, **named))

    return call


def _streamed(
    method: Callable[Concatenate[Any, _Given], Iterator[_Item]],
) -> Callable[Concatenate[Any, _Given], AsyncStream[_Item]]:
    """Makes a method that returns a stream for `async for`."""

    @functools.wraps(method)
    def call(self: Any, /, *given: _Given.args, **named: _Given.kwargs) -> AsyncStream[_Item]:
        found: Callable[_Given, Iterator[_Item]] = getattr(self._target, method.__name__)
        return AsyncStream(self._threads, functools.partial(found, *given, **named))

    return call


def _patient(
    method: Callable[Concatenate[Any, _Given], pa.RecordBatch],
) -> Callable[Concatenate[Any, _Given], Coroutine[Any, Any, pa.RecordBatch]]:
    """Makes the awaited twin of a method that may wait for records, slice by slice (rule 1)."""

    @functools.wraps(method)
    async def call(self: Any, /, *given: _Given.args, **named: _Given.kwargs) -> pa.RecordBatch:
        found: Callable[..., pa.RecordBatch] = getattr(self._target, method.__name__)
        threads: Threads = self._threads
        asked = dict(named)
        wait_ms = asked.get("wait_ms", 0)
        deadline = time.monotonic() + wait_ms / 1000 if type(wait_ms) is int else 0.0
        while True:
            if type(wait_ms) is int:
                asked["wait_ms"] = min(wait_ms, SLICE_MS)
            action = functools.partial(found, *given, **asked)
            batch = await threads.run_or_undo(action, self._give_back, waits=wait_ms != 0)
            wait_ms = int((deadline - time.monotonic()) * 1000)
            if batch.num_rows or wait_ms <= 0:
                return batch

    return call


class AsyncStream(Generic[_Item]):
    """The batches of a scan for `async for`; `aclose`, or an `async with`, ends it early."""

    def __init__(self, threads: Threads, begin: Callable[[], Iterator[_Item]]) -> None:
        self._threads = threads
        self._begin = begin
        self._items: Iterator[_Item] | None = None
        self._is_over = False
        self._turn = asyncio.Lock()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        async with self._turn:
            if self._is_over:
                raise StopAsyncIteration
            future, answer = self._threads.begin(self._step)
            try:
                found = await answer
            except BaseException:
                self._is_over = True
                future.add_done_callback(lambda _: self._close())  # behind the step at work
                raise
            if found is _END:
                self._is_over = True
                raise StopAsyncIteration
            return cast("_Item", found)

    def _step(self) -> object:
        if self._items is None:
            self._items = self._begin()
        return next(self._items, _END)

    def _close(self) -> None:
        end = getattr(self._items, "close", None)
        if end is not None:
            with contextlib.suppress(LaminaError):
                end()

    async def aclose(self) -> None:
        """Ends the stream; nothing more comes."""
        async with self._turn:
            if not self._is_over:
                self._is_over = True
                await self._threads.run(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncGroup(Shown):
    """A consumer group for asyncio, from `AsyncStore.group`; `group` is the one behind it."""

    def __init__(self, group: GroupApi, threads: Threads) -> None:
        self.group = self._target = group
        self._threads = threads
        self.topic, self.name, self.schema = group.topic, group.name, group.schema

    def _portrait(self) -> Portrait:
        return self.group._portrait()

    def _give_back(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.group.release(batch)

    poll = _patient(GroupApi.poll)
    ack = _awaited(GroupApi.ack)
    release = _awaited(GroupApi.release)
    extend = _awaited(GroupApi.extend)
    reject = _awaited(GroupApi.reject)
    commit = _awaited(GroupApi.commit)
    committed = _awaited(GroupApi.committed)
    lag = _awaited(GroupApi.lag)
    describe = _awaited(GroupApi.describe)

    async def skipped(self) -> list[Skipped]:
        """Returns the latest ranges that the group went past because their records are gone."""
        return await self._threads.run(lambda: self.group.skipped)


class AsyncStore(Shown):
    """A store of any kind for asyncio; `store` is the one behind it.

    `append` is the store's own `append_async`. Closing it closes the store.
    """

    def __init__(self, store: StoreApi, *, threads: int = THREADS) -> None:
        self.store = self._target = store
        self._threads = Threads(threads)
        self.append = store.append_async

    def _portrait(self) -> Portrait:
        return self.store._portrait()

    def _give_back(self, batch: pa.RecordBatch) -> None:
        """Does nothing: what a fetch returned is read, not taken."""

    async def close(self) -> None:
        """Closes the store; it is closed, later, also where the task that asks is cancelled."""
        if self._threads.is_closed:
            return
        _, answer = self._threads.begin(self.store.close)
        self._threads.close()
        await asyncio.shield(answer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def group(self, topic: str, name: str, *, start: Start = "earliest") -> AsyncGroup:
        """Returns a consumer group; one that is not there yet is made, at `start`."""
        ask = functools.partial(self.store.group, topic, name, start=start)
        return AsyncGroup(await self._threads.run(ask), self._threads)

    scan = _streamed(StoreApi.scan)
    scan_from = _streamed(StoreApi.scan_from)
    read = _streamed(StoreApi.read)
    fetch = _patient(StoreApi.fetch)

    topics = _awaited(StoreApi.topics)
    describe_topic = _awaited(StoreApi.describe_topic)
    format_of = _awaited(StoreApi.format_of)
    create_topic = _awaited(StoreApi.create_topic)
    alter_topic = _awaited(StoreApi.alter_topic)
    add_partitions = _awaited(StoreApi.add_partitions)
    delete_topic = _awaited(StoreApi.delete_topic)
    routers = _awaited(StoreApi.routers)
    create_router = _awaited(StoreApi.create_router)
    alter_router = _awaited(StoreApi.alter_router)
    delete_router = _awaited(StoreApi.delete_router)
    append_batch = _awaited(StoreApi.append_batch)
    producer_position = _awaited(StoreApi.producer_position)
    diff = _awaited(StoreApi.diff)
    earliest_offset = _awaited(StoreApi.earliest_offset)
    latest_offset = _awaited(StoreApi.latest_offset)
    offset_for_time = _awaited(StoreApi.offset_for_time)
    gaps = _awaited(StoreApi.gaps)
    gone_from = _awaited(StoreApi.gone_from)
    segments = _awaited(StoreApi.segments)
    flush = _awaited(StoreApi.flush)
    maintain = _awaited(StoreApi.maintain)
    archive = _awaited(StoreApi.archive)
    tier_status = _awaited(StoreApi.tier_status)
    trim = _awaited(StoreApi.trim)
    delete_records = _awaited(StoreApi.delete_records)
    delete = _awaited(StoreApi.delete)
    explain_retention = _awaited(StoreApi.explain_retention)
    apply_retention = _awaited(StoreApi.apply_retention)
    roll = _awaited(StoreApi.roll)
    layers = _awaited(StoreApi.layers)
    blocks = _awaited(StoreApi.blocks)
    raw_record = _awaited(StoreApi.raw_record)
    extents = _awaited(StoreApi.extents)
    writers = _awaited(StoreApi.writers)
    sinks = _awaited(StoreApi.sinks)
    groups = _awaited(StoreApi.groups)
    describe_group = _awaited(StoreApi.describe_group)
    reset_group = _awaited(StoreApi.reset_group)
    delete_group = _awaited(StoreApi.delete_group)
    join_group = _awaited(StoreApi.join_group)
    sync_group = _awaited(StoreApi.sync_group)
    heartbeat = _awaited(StoreApi.heartbeat)
    leave_group = _awaited(StoreApi.leave_group)
    commit_offsets = _awaited(StoreApi.commit_offsets)
    committed_offsets = _awaited(StoreApi.committed_offsets)
    describe_members = _awaited(StoreApi.describe_members)
    set_schema = _awaited(StoreApi.set_schema)
    schema = _awaited(StoreApi.schema)
    schemas = _awaited(StoreApi.schemas)


class Opening:
    """A store that is being opened: await it, or use it with `async with`, which closes it."""

    def __init__(self, make: Callable[[], StoreApi], threads: int) -> None:
        self._make = make
        self._count = threads
        self._opened: AsyncStore | None = None

    def __repr__(self) -> str:
        return "<lamina.aio: a store that is not open yet: await it, or use it with `async with`>"

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        threads = Threads(1)
        try:
            store = await threads.run_or_undo(self._make, lambda made: made.close(), waits=False)
        finally:
            threads.close()
        return AsyncStore(store, threads=self._count)

    async def __aenter__(self) -> AsyncStore:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()


def open(
    path: Location,
    *,
    read_only: bool = False,
    archive: Location | None = None,
    open_files: int | None = None,
    threads: int = THREADS,
) -> Opening:
    """Opens a data directory or an archive as `lamina.open` does, without blocking the loop."""
    return Opening(
        lambda: lamina.open(path, read_only=read_only, archive=archive, open_files=open_files),
        threads,
    )


def connect(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 30.0,
    tls_root: bytes | None = None,
    threads: int = THREADS,
) -> Opening:
    """Connects to a server as `lamina.connect` does."""
    return Opening(
        lambda: lamina.connect(url, api_key=api_key, timeout_s=timeout_s, tls_root=tls_root),
        threads,
    )
