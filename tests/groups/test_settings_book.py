"""Settings of share groups: kept, and where they cannot be read, set aside and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

import lamina
from lamina.errors import NewerFormat
from lamina.formats.documents import group_settings

START = "share.auto.offset.reset"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with lamina.open(str(tmp_path / "data")) as store:
        store.coordinator.share_settings.alter("g", {START: "earliest"})
    return tmp_path / "data"


def start_of(store: lamina.Store, group: str) -> str:
    return store.coordinator.share_settings.of(group).start


def test_what_was_set_lasts(data: Path) -> None:
    with lamina.open(str(data)) as store:
        assert (start_of(store, "g"), start_of(store, "other")) == ("earliest", "latest")
        assert store.recovery_report.events == []


@pytest.mark.parametrize("bytes_now", [b"foreign", b"", None])
def test_a_damaged_file_is_told_and_kept_before_it_is_written_again(
    data: Path, bytes_now: bytes | None
) -> None:
    path = data / "meta" / "group-settings.json"
    broken = path.read_bytes().replace(b"earliest", b"earlzest")
    path.write_bytes(broken if bytes_now is None else bytes_now)
    broken = path.read_bytes()
    with lamina.open(str(data)) as store:
        (event,) = store.recovery_report.events
        assert (event.kind, event.path) == ("quarantined", str(path))
        assert "default" in event.why
        store.coordinator.share_settings.alter("h", {START: "earliest"})
        assert event.kept_in is not None
        assert Path(event.kept_in).read_bytes() == broken
    with lamina.open(str(data)) as store:
        assert store.recovery_report.events == []
        assert (start_of(store, "g"), start_of(store, "h")) == ("latest", "earliest")


def test_a_newer_file_is_refused_by_its_name(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data / "meta" / "group-settings.json"
    with monkeypatch.context() as newer:
        newer.setattr(group_settings, "VERSION", 2)
        path.write_bytes(group_settings.encode({}))
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match=r"group-settings\.json"):
        lamina.open(str(data))
    assert path.read_bytes() == before


def test_a_setting_of_another_version_costs_no_other_setting(data: Path) -> None:
    """One that was not known once made the group begin at the end, without a word."""
    path = data / "meta" / "group-settings.json"
    another = {"share.of.tomorrow": 7, "share.session.timeout.ms": 5, START: "earliest"}
    path.write_bytes(group_settings.encode({"g": another}))
    with lamina.open(str(data)) as store:
        found = store.coordinator.share_settings.of("g")
        assert (found.start, found.session_ms) == ("earliest", 45_000)
        store.coordinator.share_settings.alter("g", {"share.heartbeat.interval.ms": 900})
        assert start_of(store, "g") == "earliest"
    kept = group_settings.decode(path.read_bytes())["g"]
    expected = {"share.of.tomorrow": 7, START: "earliest", "share.heartbeat.interval.ms": 900}
    assert kept == expected


def test_a_flipped_bit_costs_no_setting(data: Path) -> None:
    path = data / "meta" / "group-settings.json"
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"earliest", b"earlyest"))
    damaged = path.read_bytes()
    with lamina.open(str(data)) as store:
        (event,) = store.recovery_report.events
        assert (event.kind, event.path) == ("rebuilt", str(path))
        assert event.kept_in is not None
        assert Path(event.kept_in).read_bytes() == damaged
        assert start_of(store, "g") == "earliest"
    assert path.read_bytes() == sound
