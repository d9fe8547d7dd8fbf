"""The memory of messages: what one message frees, the next one uses, without new pages."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest
from tests.server.rig import served

MADE = {
    "nobody": "",
    "client": """
from lamina.client.connection import Connection
made = Connection("grpc://127.0.0.1:1", key=None, timeout_s=1, tls_root=None)
""",
    "server": """
from lamina.server.broker import Broker
from lamina.server.flight import FlightDoor
from lamina.server.setting_table import ServerSettings
made = FlightDoor(Broker(ServerSettings(), None), "grpc://127.0.0.1:0")
""",
}
MESSAGES = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def message():  # as gRPC takes it: in pieces, then in one
    pieces = [(libc.malloc(size), size) for size in [64 << 10] * 320 + [4 << 20]]
    for piece, size in pieces:
        ctypes.memset(piece, 1, size)
    for piece, _ in pieces:
        libc.free(piece)

message()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    message()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 20 * (24 << 20) // 4096


pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so soon"
)


def faults(made: str, **environment: str) -> int:
    """How many pages 20 messages of 4 MiB, with more on their way, ask for in a new process."""
    command = [sys.executable, "-c", made + MESSAGES]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return int(ended.stdout)


def test_messages_use_the_memory_of_those_before() -> None:
    assert faults(MADE["nobody"]) > PAGES // 2, "there is nothing to be gained here"
    assert faults(MADE["client"]) < PAGES // 20
    assert faults(MADE["server"]) < PAGES // 20


def test_a_table_that_no_message_can_carry_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    value = pa.record_batch({"value": pa.array([bytes(64 << 20)], pa.large_binary())})
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t")
        taken = pa.system_memory_pool().max_memory()
        with pytest.raises(InvalidRequest, match="send it in parts"):
            store.append("t", pa.Table.from_batches([value] * 32))
        assert pa.system_memory_pool().max_memory() == taken
        assert store.latest_offset("t", 0) == 0


def test_thresholds_that_somebody_chose_stay() -> None:
    assert faults(MADE["client"], MALLOC_TRIM_THRESHOLD_="131072") > PAGES // 2
