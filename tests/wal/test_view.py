"""Reading beside a writer: what a look has found is used again, and nothing is missed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.store.store import Store
from lamina.wal.replay import Replay, Replayed
from tests.wal.stores import fill, looked_at, numbered, opened, values

WAL = WalSettings(shards=2, segment_events=10)


class Watched:
    """Counts how often the WAL is read whole; `then` is called after each time."""

    def __init__(self, real: Callable[[Replay], Replayed]) -> None:
        self.count = 0
        self.real = real
        self.then: Callable[[], None] = lambda: None

    def __call__(self, replay: Replay) -> Replayed:
        found = self.real(replay)
        self.count += 1
        self.then()
        return found


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(Replay.run)

    def run(replay: Replay) -> Replayed:
        return watched(replay)

    monkeypatch.setattr(Replay, "run", run)
    return watched


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path, WAL) as made:
        for name in ("t", "u"):
            made.create_topic(name, format="wal")
        fill(made, 1, 5)
        yield made


def test_a_quiet_wal_is_read_once_and_every_change_is_seen(
    store: Store, tmp_path: Path, replays: Watched
) -> None:
    replays.count = 0
    with looked_at(tmp_path, WAL) as reader:
        for _ in range(3):
            assert values(reader) == numbered(1, 5)
            assert values(reader, "u") == {}
        assert replays.count == 1
        for end in range(6, 9):
            fill(store, end - 1, end)
            assert values(reader) == numbered(1, end)
        fill(store, 8, 9, acks=1)
        assert values(reader) == numbered(1, 9)
        store.maintain()
        for _ in range(3):
            assert values(reader) == numbered(1, 9)
        store.delete("t", offsets=[2])
        assert 2 not in values(reader)
        store.append("u", [b" " * (1 << 20)])
        store.maintain()  # begins a new file
        for _ in range(3):
            assert values(reader) == {**numbered(1, 2), **numbered(3, 9)}
        assert replays.count < 10


def test_what_is_written_while_the_wal_is_read_is_seen_by_the_next_look(
    store: Store, tmp_path: Path, replays: Watched
) -> None:
    with looked_at(tmp_path, WAL) as reader:
        replays.then = lambda: fill(store, 5, 6)
        reader.latest_offset("t")
        replays.then = lambda: None
        assert values(reader) == numbered(1, 6)


def test_a_torn_tail_is_shown_the_same_by_every_look(store: Store, tmp_path: Path) -> None:
    store._disown()
    (path,) = (each for each in tmp_path.glob("wal/*/wal-1.log") if b"value 2" in each.read_bytes())
    raw = path.read_bytes()
    end = raw.index(b"value 4") + 3
    path.write_bytes(raw[:end] + bytes(len(raw) - end))
    with looked_at(tmp_path, WAL) as reader:
        for _ in range(2):
            assert values(reader) == numbered(1, 4)
