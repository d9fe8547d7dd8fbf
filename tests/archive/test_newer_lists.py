"""Lists and ledgers of an archive that a newer version wrote are refused by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import lamina
from lamina.errors import NewerFormat
from lamina.formats.documents import ledger
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import archived_topic
from lamina.store.store import Store
from lamina_torture.cross import damages
from tests.archive.rig import NEVER, SETTINGS, TOPIC

CONFIG = {"segment.bytes": 1024, "remote.storage.enable": True, "local.retention.bytes": 1}


def archived(path: Path) -> Path:
    """Makes a topic of which records are only in the archive; returns the archive's folder."""
    with Store(str(path / "data"), archive=str(path / "cold"), tick_ms=NEVER) as store:
        store.create_topic(TOPIC, config={**SETTINGS, **CONFIG})
        for number in range(40):
            store.append(TOPIC, [b"%d " % number + b"." * 200], partition=0)
        store.archive()
        store.maintain()
    return path / "cold" / "data" / TOPIC / "0"


def _newer(file: Path) -> bytes:
    """Makes a file one of the next version; returns its bytes."""
    made = damages.newer(file.name, file.read_bytes())
    assert made is not None
    file.write_bytes(made[0])
    return made[0]


@pytest.mark.parametrize("name", ["manifest.json", "ledger.json"])
def test_a_newer_list_or_ledger_is_refused_by_its_name_and_stays(tmp_path: Path, name: str) -> None:
    file = archived(tmp_path) / name
    if not file.exists():
        file.write_bytes(ledger.encode(ledger.Ledger()))
    newer = _newer(file)
    with (
        lamina.open(f"file://{tmp_path / 'cold'}", read_only=True) as store,
        pytest.raises(NewerFormat) as refused,
    ):
        list(store.scan(TOPIC))
    assert refused.value.path.endswith(f"data/{TOPIC}/0/{name}")
    assert file.read_bytes() == newer


def test_a_newer_copy_of_topic_json_is_refused_by_its_name_and_stays(tmp_path: Path) -> None:
    """Neither archiving nor the deletion of the topic replaces what may say more than ours."""
    file = archived(tmp_path).parent / "topic.json"
    newer = _newer(file)
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "cold"), tick_ms=NEVER) as store:
        with pytest.raises(NewerFormat) as refused:
            store.archive()
        assert refused.value.path.endswith(f"data/{TOPIC}/topic.json")
        assert file.read_bytes() == newer
        assert len([row for batch in store.scan(TOPIC) for row in batch.to_pylist()]) == 40
        store.delete_topic(TOPIC)
    assert file.read_bytes() == newer


def test_an_archive_alone_refuses_a_newer_copy_of_topic_json(tmp_path: Path) -> None:
    file = archived(tmp_path).parent / "topic.json"
    _newer(file)
    with pytest.raises(NewerFormat) as refused:
        archived_topic(DirectoryObjects(LocalFiles(), str(tmp_path / "cold")), TOPIC, 1)
    assert refused.value.path.endswith(f"data/{TOPIC}/topic.json")


def test_a_newer_copy_of_a_group_is_refused_and_stays(tmp_path: Path) -> None:
    folder = archived(tmp_path)
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "cold"), tick_ms=NEVER) as store:
        group = store.group(TOPIC, "g")
        group.ack(group.poll(3, 60_000))
        store.maintain()
        store.archive()
        file = folder / "state" / "g.json"
        newer = _newer(file)
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "cold"), tick_ms=NEVER) as store:
        with pytest.raises(NewerFormat) as refused:
            store.archive()
        assert refused.value.path.endswith(file.name)
    assert file.read_bytes() == newer
