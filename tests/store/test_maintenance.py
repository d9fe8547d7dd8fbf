"""The thread that looks after a store ends with it; what recovery did is written down once."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lamina.storage import paths
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import NEVER_MS, opened


def test_whoever_stops_it_waits_for_a_tick_that_is_under_way(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        thread = store._maintenance._thread
        assert thread is not None
        assert thread.is_alive()
        store._maintenance.stop()
        assert not thread.is_alive()
        store._maintenance.stop()


@pytest.mark.parametrize("is_full", [False, True])
def test_what_recovery_did_is_kept_once_and_on_a_full_disk_later(is_full: bool) -> None:
    files = SimulatedFiles()
    Store("/d", files=files, tick_ms=NEVER_MS).close()
    files.remove(f"/d/{paths.RECOVERY_REPORT}")
    if is_full:
        files.fail("create", error=errno.ENOSPC, forever=True)
    store = Store("/d", files=files, tick_ms=NEVER_MS)
    if is_full:
        store.maintain()
        assert not files.exists(f"/d/{paths.RECOVERY_REPORT}")
    files.faults.clear()
    store.maintain()
    assert files.exists(f"/d/{paths.RECOVERY_REPORT}")
    files.remove(f"/d/{paths.RECOVERY_REPORT}")
    store.maintain()
    assert not files.exists(f"/d/{paths.RECOVERY_REPORT}"), "it says nothing new"
    store.close()
