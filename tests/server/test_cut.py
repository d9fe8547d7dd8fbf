"""A connection that breaks at any byte of an exchange: the append is stored, and stored once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lamina
from tests.server.rig import CuttingProxy, served

AT_ONCE = 8
CI_STEP = 4
TIMEOUT_S = 60


def exchange(port: int, direction: str, position: int | None, value: bytes) -> CuttingProxy:
    """Appends through a connection that is cut; whether or not, it must come through."""
    budget = {"upstream": None, "downstream": None, direction: position}
    proxy = CuttingProxy(port, **budget)
    try:
        with lamina.connect(f"grpc://127.0.0.1:{proxy.port}", timeout_s=TIMEOUT_S) as client:
            ack = client.append("t", [value, value + b" again"], partition=0)
            batch = client.fetch("t", 0, ack.base_offset, max_records=2)
            assert batch.column("value").to_pylist() == [value, value + b" again"]
    finally:
        proxy.close()
    return proxy


def cut_everywhere(tmp_path: Path, step: int) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        port = int(service.flight_url.rsplit(":", 1)[1])
        whole = exchange(port, "upstream", None, b"uncut")
        places = [
            (direction, position)
            for direction, name in (("upstream", "up"), ("downstream", "down"))
            for position in range(1, whole.counted[name], step)
        ]
        assert len(places) * step > 800, "an exchange is at least this many bytes"

        def run(place: tuple[str, int]) -> int:
            return exchange(port, *place, f"{place[0]} {place[1]}".encode()).cuts

        with ThreadPoolExecutor(AT_ONCE) as pool:
            cuts = sum(pool.map(run, places))
        assert cuts >= len(places) * 0.9, "nearly every connection was really cut"
        stored = Counter(
            value for batch in store.scan("t") for value in batch.column("value").to_pylist()
        )
    wanted = [f"{direction} {position}".encode() for direction, position in places]
    assert {value: stored[value] for value in wanted} == dict.fromkeys(wanted, 1)
    assert set(stored.values()) == {1}, "nothing is stored twice"


def test_an_append_survives_a_cut_at_many_bytes_and_is_stored_once(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, CI_STEP)


@pytest.mark.long
def test_an_append_survives_a_cut_at_every_byte_and_is_stored_once(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, 1)


def test_without_idempotence_a_cut_is_told_and_nothing_is_sent_again(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        port = int(service.flight_url.rsplit(":", 1)[1])
        proxy = CuttingProxy(port, upstream=None, downstream=200)
        url = f"grpc://127.0.0.1:{proxy.port}"

        def append_for_ever() -> None:
            while True:
                client.append("t", b"once")

        with (
            lamina.connect(url, idempotent=False, timeout_s=10) as client,
            pytest.raises(lamina.Unavailable, match="not known"),
        ):
            append_for_ever()
        proxy.close()
        rows = [row for batch in store.scan("t") for row in batch.to_pylist()]
        assert len(rows) <= 20


def test_a_scan_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        for number in range(40):
            store.append("t", [b"%d" % number * 1000] * 5)
        port = int(service.flight_url.rsplit(":", 1)[1])
        for cut in (100, 3000, 30_000, 200_000):
            proxy = CuttingProxy(port, upstream=None, downstream=cut)
            with lamina.connect(f"grpc://127.0.0.1:{proxy.port}", timeout_s=60) as client:
                offsets = [
                    offset
                    for batch in client.scan("t", max_records=7)
                    for offset in batch.column("offset").to_pylist()
                ]
            proxy.close()
            assert offsets == list(range(200))
            assert proxy.cuts == 1
