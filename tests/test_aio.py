"""A store for asyncio: the same calls, awaited; many at once, and cancelled at any time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina import aio
from lamina.api import GroupApi, StoreApi
from lamina.errors import Closed, UnknownTopic
from tests.server.rig import served
from tests.support.directories import FORMATS

SOON_S = 60
VALUES = {"path", "identity", "recovery_report"}
"""What is known without asking: found on `AsyncStore.store`."""
FOR_PARTS = {"append_async", "coordinator", "failures", "new_producer_id", "purge_wal", "segmented"}
FOR_PARTS |= {"seat", "tier", "wal_partitions", "write_ahead_log"}
"""What a server and jobs ask; `append_async` is `append` here."""


def run(program: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(program, SOON_S))


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_call_of_a_store_and_a_group_is_there() -> None:
    assert public(StoreApi) - VALUES - FOR_PARTS - {"append"} <= public(aio.AsyncStore)
    assert public(GroupApi) <= public(aio.AsyncGroup)


@pytest.mark.parametrize("format_name", FORMATS)
def test_records_are_appended_read_and_consumed(tmp_path: Path, format_name: str) -> None:
    async def program(store: aio.AsyncStore) -> None:
        await store.create_topic("t", format=format_name)
        first = (await store.append("t", [b"%d" % number for number in range(10)])).base_offset
        stream = store.scan("t", max_records=3)
        values = [value async for batch in stream for value in batch.column("value").to_pylist()]
        assert values == [b"%d" % number for number in range(10)]
        assert (await store.fetch("t", 0, first)).num_rows == 10
        group = await store.group("t", "g")
        held = await group.poll(4)
        assert await group.ack(held) == 4
        assert [lag.records for lag in await group.lag()] == [6]
        assert await group.skipped() == []
        with pytest.raises(UnknownTopic):
            await store.describe_topic("nowhere")
        with pytest.raises(UnknownTopic):
            async for _ in store.scan("nowhere"):
                pass

    async def embedded() -> None:
        opening = aio.open(tmp_path / "data")
        assert "await it, or use it with `async with`" in repr(opening)
        async with opening as store:
            await program(store)
        with pytest.raises(Closed):
            await store.topics()
        await store.close()

    run(embedded())
    with served(tmp_path / "served") as service:

        async def remote() -> None:
            async with aio.connect(service.flight_url) as store:
                await program(store)

        run(remote())


@pytest.mark.parametrize("format_name", FORMATS)
def test_ten_thousand_appends_at_once_are_all_stored(tmp_path: Path, format_name: str) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data") as store:
            await store.create_topic("t", format=format_name)
            acks = await asyncio.gather(*(store.append("t", b"value") for _ in range(10_000)))
            assert {ack.count for ack in acks} == {1}
            assert len({ack.base_offset for ack in acks}) == 10_000
            read = [batch.num_rows async for batch in store.scan("t")]
            assert sum(read) == 10_000

    run(program())


def test_a_thousand_appends_at_once_are_stored_by_a_server(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:

        async def program() -> None:
            async with aio.connect(service.flight_url) as store:
                await store.create_topic("t")
                acks = await asyncio.gather(*(store.append("t", b"value") for _ in range(1_000)))
                assert len({ack.base_offset for ack in acks}) == 1_000

        run(program())


def test_more_calls_than_threads_wait_for_their_turn(tmp_path: Path) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data", threads=2) as store:
            await store.create_topic("t")
            await store.append("t", b"value")
            answers = await asyncio.gather(*(store.latest_offset("t") for _ in range(200)))
            assert answers == [1] * 200
            own = [each for each in threading.enumerate() if each.name.startswith("lamina-aio")]
            assert len(own) <= 4, "two that work, two that wait"

    run(program())


def test_consumers_that_wait_keep_nobody_from_working(tmp_path: Path) -> None:
    """More of them than threads, each waiting for a record that one of the calls behind brings."""

    async def program() -> None:
        async with aio.open(tmp_path / "data", threads=2) as store:
            await store.create_topic("t")
            group = await store.group("t", "g")
            polls = [asyncio.ensure_future(group.poll(1, wait_ms=600_000)) for _ in range(6)]
            reads = [
                asyncio.ensure_future(store.fetch("t", 0, 0, wait_ms=600_000)) for _ in range(6)
            ]
            assert await store.latest_offset("t") == 0
            await store.append("t", [b"value"] * 6)
            held = await asyncio.gather(*polls)
            assert sorted(batch.column("offset")[0].as_py() for batch in held) == list(range(6))
            assert {batch.num_rows for batch in await asyncio.gather(*reads)} == {6}
            for batch in held:
                assert await group.ack(batch) == 1

    run(program())


def test_consumers_that_wait_in_vain_give_others_their_turn(tmp_path: Path) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data", threads=2) as store:
            for topic in ("quiet", "busy"):
                await store.create_topic(topic)
            await store.append("busy", b"value")
            quiet, busy = await store.group("quiet", "g"), await store.group("busy", "g")
            waiting = [asyncio.ensure_future(quiet.poll(wait_ms=600_000)) for _ in range(4)]
            await asyncio.sleep(0)
            assert (await busy.poll(wait_ms=600_000)).num_rows == 1
            for task in waiting:
                await cancelled(task)

    run(program())


def test_what_a_cancelled_poll_was_given_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data") as store:
            await store.create_topic("t")
            await store.append("t", [b"value"] * 3)
            group = await store.group("t", "g")
            begun, gate, released = threading.Event(), threading.Event(), threading.Event()
            poll, release = group.group.poll, group.group.release

            def slow(*given: Any, **named: Any) -> Any:
                batch = poll(*given, **named)
                begun.set()
                gate.wait(SOON_S)
                return batch

            def noted(*given: Any, **named: Any) -> int:
                count = release(*given, **named)
                released.set()
                return count

            monkeypatch.setattr(group.group, "poll", slow)
            monkeypatch.setattr(group.group, "release", noted)
            task = asyncio.ensure_future(group.poll(3, lease_ms=600_000))
            await asyncio.to_thread(begun.wait, SOON_S)
            await cancelled(task)
            gate.set()
            await asyncio.to_thread(released.wait, SOON_S)
            assert (await group.poll(3)).num_rows == 3, "nobody has to wait for ten minutes"

    run(program())


async def cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_a_cancelled_append_is_taken_back_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data") as store:
            await store.create_topic("t")
            partition = store.store._open.partitions["t", 0]  # type: ignore[attr-defined]
            held, gate = threading.Event(), threading.Event()

            def hold() -> None:
                held.set()
                gate.wait(SOON_S)

            busy = asyncio.ensure_future(asyncio.to_thread(partition.writer.exclusively, hold))
            await asyncio.to_thread(held.wait, SOON_S)
            taken_back = asyncio.ensure_future(store.append("t", b"taken back"))
            kept = asyncio.ensure_future(store.append("t", b"kept"))
            while partition.writer.depth < 2:
                await asyncio.sleep(0)
            await cancelled(taken_back)
            gate.set()
            await busy
            assert (await kept).base_offset == 0
            assert await store.latest_offset("t") == 1

    run(program())


def test_a_topic_with_a_schema_is_read_as_a_stream_of_columns(tmp_path: Path) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data") as store:
            await store.create_topic("t")
            await store.set_schema("t", pa.schema([("amount", pa.int64())]), encoding="json")
            await store.append("t", [b'{"amount": 1}', b'{"amount": 2}'])
            read = [batch async for batch in store.read("t")]
            assert [row for batch in read for row in batch.column("amount").to_pylist()] == [1, 2]
            assert len(await store.schemas("t")) == 1

    run(program())


def test_a_stream_that_is_left_early_reads_no_more(tmp_path: Path) -> None:
    async def program() -> None:
        async with aio.open(tmp_path / "data") as store:
            await store.create_topic("t")
            await store.append("t", [b"value"] * 10)
            async with store.scan("t", max_records=1) as stream:
                async for batch in stream:
                    assert batch.num_rows == 1
                    break
            assert [batch async for batch in stream] == []

    run(program())


def test_a_stream_whose_reader_is_cancelled_is_closed_behind_the_step_at_work(
    tmp_path: Path,
) -> None:
    begun, gate, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __iter__(self) -> Slow:
            return self

        def __next__(self) -> int:
            begun.set()
            gate.wait(SOON_S)
            assert not closed.is_set()
            return 1

        def close(self) -> None:
            assert gate.is_set()
            closed.set()

    async def program() -> None:
        threads = aio.Threads(2)
        stream = aio.AsyncStream(threads, Slow)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(begun.wait, SOON_S)
        await cancelled(task)
        gate.set()
        assert await asyncio.to_thread(closed.wait, SOON_S)
        assert [each async for each in stream] == []
        threads.close()

    run(program())


def test_an_opening_that_is_cancelled_leaves_the_directory_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = threading.Event(), threading.Event()
    opened: list[Any] = []

    def slow(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        begun.set()
        gate.wait(SOON_S)
        opened.append(real(*given, **named))
        return opened[0]

    monkeypatch.setattr(lamina, "open", functools.partial(slow, lamina.open))

    async def program() -> None:
        task = asyncio.ensure_future(aio.open(tmp_path / "data")._open())
        await asyncio.to_thread(begun.wait, SOON_S)
        await cancelled(task)
        gate.set()

    run(program())
    monkeypatch.undo()
    for thread in threading.enumerate():
        if thread.name.startswith("lamina-aio"):
            thread.join(SOON_S)
    assert "closed" in repr(opened[0])
    lamina.open(tmp_path / "data").close()


def test_an_adapter_shows_the_store_behind_it(tmp_path: Path) -> None:
    async def program() -> None:
        store = await aio.open(tmp_path / "data")
        assert repr(store) == repr(store.store)
        assert "open" in repr(store)
        await store.close()
        assert "closed" in store._repr_html_()

    run(program())
