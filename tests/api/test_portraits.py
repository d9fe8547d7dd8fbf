"""What people see of a value in a terminal and in a notebook: true, bounded, and never an error."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import Event, GroupInfo, Lags, Layer, Layers, PartitionInfo, RecoveryReport
from lamina.api.portraits import ROWS_MAX, Shown
from lamina.client.remote_store import RemoteStore
from lamina.store.archive_store import ArchiveStore
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.server.rig import served
from tests.support.directories import FORMATS

HOSTILE = "<script>alert(1)</script>\x1b[31m\n"


def shown(value: Any) -> tuple[str, str]:
    """The text and the HTML of a value; both are made of it, without an error."""
    assert isinstance(value, Shown)
    text, markup = repr(value), value._repr_html_()
    assert markup.startswith("<div>")
    assert "\x1b" not in text + markup
    return text, markup


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_store_shows_its_topics(tmp_path: Path, format_name: str) -> None:
    with lamina.open(tmp_path / "data") as store:
        assert "open" in repr(store)
        store.create_topic("orders", format=format_name)
        end = store.append("orders", [b"value"] * 3).base_offset + 3
        text, markup = shown(store)
        assert str(tmp_path / "data") in text
        for each in ("orders", format_name, str(end)):
            assert each in text
            assert each in markup
    assert "closed" in shown(store)[0]


def test_every_kind_of_store_is_shown_open_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"remote.storage.enable": True}
    with lamina.open(tmp_path / "data", archive=tmp_path / "archive") as store:
        store.create_topic("t", config=settings)
        store.append("t", [b"value"])
        store.roll("t")
        store.archive()
    with contextlib.ExitStack() as every, served(tmp_path / "data") as service:
        kinds: list[Any] = [
            lamina.open(tmp_path / "data", read_only=True),
            lamina.open(f"file://{tmp_path}/archive", read_only=True),
            lamina.connect(service.flight_url),
        ]
        for kind in kinds:
            every.callback(kind.close)
        for kind in kinds:
            assert f"<lamina.{type(kind).__name__} '" in shown(kind)[0]
            assert "open" in repr(kind)
            drawn = kind.scan("t")
            assert "t/0: 0 batches" in shown(drawn)[0]
            assert sum(batch.num_rows for batch in drawn) == 1
            assert "1 batch, 1 record so far, at its end" in shown(drawn)[0]
        remote = kinds[-1]
        remote.append("t", b"value")
        assert "keratin" in shown(remote)[0], "what it has learned of its topics"
        group = remote.group("t", "readers")
        assert "2 records behind" in shown(group.lag())[0]
        service.stop()
        for each in ("attempt", "repeat"):
            monkeypatch.setattr(remote._connection, each, None)  # whoever asks fails at once
        assert "readers" in shown(group)[0], "the server is gone, and nobody waits for it"
        assert "keratin" in shown(remote)[0]
    for kind in kinds:
        assert "closed" in shown(kind)[0]


@pytest.mark.parametrize("kind", [Store, ReadOnlyStore, ArchiveStore, RemoteStore])
def test_a_store_that_was_never_opened_is_shown_all_the_same(kind: type) -> None:
    """As a debugger shows it, in the middle of its constructor."""
    assert kind.__name__ in shown(kind.__new__(kind))[0]


def test_a_topic_and_its_partitions_are_drawn(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        store.append("t", [b"value"] * 10, partition=1)
        topic = store.describe_topic("t")
        text, markup = shown(topic)
        assert "topic 't': keratin, 2 partitions" in text
        assert "10" in text
        assert "background:" in markup
        store.delete_topic("t")
        assert shown(topic)[0] == text, "a value stays what it is"
        assert "offsets 0 … 10" in shown(topic.partitions[1])[0]
    archived = PartitionInfo(0, 0, 10, 10, 1, 100, archived_segments=2, archived_bytes=300)
    assert "░" * 18 + "█" * 6 in shown(archived)[0]


def test_the_layers_of_a_partition_are_drawn_oldest_first(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t")
        store.append("t", [b"value" * 100] * 10)
        store.roll("t")
        store.append("t", b"last")
        layers = store.layers("t")
    text = shown(layers)[0]
    assert text.index("▓▓▓▓") < text.index("█")
    assert "t/0: 2 layers" in text
    assert layers == list(layers)
    assert pickle.loads(pickle.dumps(layers)) == layers


def test_a_group_shows_how_far_it_is_behind(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t")
        store.append("t", [b"value"] * 3)
        group = store.group("t", "readers")
        assert "'readers'" in shown(group)[0]
        for each in (group.lag(), group.describe(), store.describe_group("t", "readers")):
            assert "group 'readers' of 't': 3 records behind" in shown(each)[0]
        assert group.lag() == list(group.lag())
    assert "'readers'" in shown(group)[0], "of a closed store"


def test_a_recovery_shows_what_it_did() -> None:
    report = RecoveryReport(milliseconds=1.25)
    assert "nothing to mend, 1.2 ms" in shown(report)[0]
    report.add("cut", "segments/0.log", "a torn tail", kept_in="quarantine/0.log")
    text = shown(report)[0]
    for each in ("1 event", "cut", "segments/0.log", "a torn tail", "quarantine/0.log"):
        assert each in text


def test_a_stream_shows_that_it_was_closed_or_broke_off(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t")
        store.append("t", [b"value"] * 2)
        closed: Any = store.scan("t", max_records=1)
        next(closed)
        closed.close()
        assert "1 record so far, closed" in shown(closed)[0]
        assert list(closed) == []
        beyond: Any = store.scan("t", start=5)
        with pytest.raises(lamina.LaminaError):
            next(beyond)
        assert "broken off" in shown(beyond)[0]


@pytest.mark.parametrize(
    "value",
    [
        RecoveryReport([Event("note", HOSTILE, HOSTILE)]),
        GroupInfo(HOSTILE, HOSTILE, ()),
        Layers([Layer("gone", 0, 1, 0, None, None, "", 0, False, HOSTILE)], HOSTILE),
        Lags([], HOSTILE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_from_outside_is_escaped(value: Any) -> None:
    text, markup = shown(value)
    assert "<script>" not in markup
    assert "&lt;script&gt;" in markup
    assert "\\x1b[31m" in text


def test_many_rows_are_counted_and_not_drawn() -> None:
    report = RecoveryReport([Event("note", f"file {number}", "why") for number in range(1_000)])
    text, markup = shown(report)
    assert len(text.splitlines()) == ROWS_MAX + 3
    for each in (text, markup):
        assert f"and {1_000 - ROWS_MAX:,} more" in each
