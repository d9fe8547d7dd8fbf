"""Free space is told before it is gone: a warning, then a problem, and not ready where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.server import auth
from lamina.server.disk_watch import DiskWatch
from lamina.server.setting_table import ServerSettings
from lamina.storage import machine
from lamina.storage.machine import Space
from tests.server.rig import served

SETTINGS = ServerSettings(disk_warn_bytes=1000, disk_min_bytes=100)


def with_free(free_bytes: int, free_files: int = 10_000, total_files: int = 20_000) -> DiskWatch:
    return DiskWatch("/d", lambda _: Space(free_bytes, 10_000, free_files, total_files))


@pytest.mark.parametrize(
    ("disk", "level"),
    [
        (with_free(1000), "ok"),
        (with_free(999), "low"),
        (with_free(99), "short"),
        (with_free(9999, free_files=1), "short"),
        (with_free(9999, free_files=0, total_files=0), "ok"),
        (DiskWatch(), "ok"),
    ],
)
def test_levels_follow_the_settings(disk: DiskWatch, level: str) -> None:
    assert disk.level(SETTINGS) == level


def test_a_disk_that_answers_nothing_is_no_problem_of_its_own() -> None:
    def fails(_: str) -> Space:
        raise OSError(5, "I/O error")

    assert DiskWatch("/d", fails).level(SETTINGS) == "ok"


def test_the_free_space_of_a_real_directory_is_known(tmp_path: Path) -> None:
    space = machine.space_of(str(tmp_path))
    assert 0 < space.free_bytes <= space.total_bytes


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    free = [5000]
    disk = DiskWatch("/d", lambda _: Space(free[0], 10_000, 10_000, 20_000))
    with caplog.at_level("INFO"):
        for now in (5000, 900, 800, 50, 40, 5000, 5000):
            free[0] = now
            disk.look(SETTINGS)
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert "disk.free.warn.bytes 1000" in caplog.records[0].getMessage()
    assert "disk.free.min.bytes 100" in caplog.records[1].getMessage()


def test_health_warns_before_it_fails_and_a_key_with_a_prefix_learns_no_numbers(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "keys.json")
    keys = {p: auth.create(path, scope="read", prefix=p)[1] for p in ("", "mine.")}
    free = [10_000]
    settings = {"disk_warn_bytes": 1000, "disk_min_bytes": 100}
    with served(tmp_path / "data", keys_file=path, **settings) as service:
        watch = DiskWatch("/d", lambda _: Space(free[0], 20_000, 10_000, 20_000))
        service.broker.condition.disk = watch

        def health(key: str | None) -> tuple[int, Any]:
            headers = {"authorization": f"Bearer {keys[key]}"} if key is not None else {}
            answer = httpx.get(f"{service.http_url}/health", headers=headers)
            return answer.status_code, answer.json()

        assert health("") == (200, {"status": "ok", "problems": [], "warnings": []})
        free[0] = 999
        status, told = health("")
        assert (status, told["problems"]) == (200, [])
        assert "999 bytes are free, below disk.free.warn.bytes 1000" in told["warnings"][0]
        assert health("mine.")[1]["warnings"] == ["the disk is getting full"]
        free[0] = 99
        status, told = health("")
        assert (status, told["warnings"]) == (503, [])
        assert "99 bytes are free" in told["problems"][0]
        assert health(None) == (503, {"status": "degraded", "problems": [], "warnings": []})
        assert httpx.get(f"{service.http_url}/ready").status_code == 200, "it still reads"
        assert httpx.get(f"{service.http_url}/live").status_code == 200


def test_ready_is_503_below_its_own_threshold_and_only_if_that_is_set(tmp_path: Path) -> None:
    with served(tmp_path / "data", disk_ready_bytes=500) as service:
        free = [501]
        watch = DiskWatch("/d", lambda _: Space(free[0], 20_000, 10_000, 20_000))
        service.broker.condition.disk = watch
        assert httpx.get(f"{service.http_url}/ready").status_code == 200
        free[0] = 499
        answer = httpx.get(f"{service.http_url}/ready")
        assert (answer.status_code, answer.json()["short_of_space"]) == (503, True)
        with lamina.connect(service.flight_url) as store:
            assert store.topics() == [], "whoever comes is answered"
