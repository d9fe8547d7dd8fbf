"""A scan that also notes the times of records, and the room that scans make for what they find."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from lamina.formats.frame import log as frame_log
from lamina.formats.frame import time_index as frame_times
from lamina.formats.keratin import log as keratin_log
from lamina.formats.keratin import time_index as keratin_times
from lamina.formats.scan import Limit, Timed
from lamina.records import INPUT_SCHEMAS, TIMESTAMP

FORMATS = [
    pytest.param("frame", frame_log, frame_times, id="frame"),
    pytest.param("keratin", keratin_log, keratin_times, id="keratin"),
]
COUNT = 20_000


def encoded(name: str, log: ModuleType, sizes: list[int]) -> tuple[bytes, np.ndarray]:
    """Records of some sizes, at times that go up and down."""
    times = 1_700_000_000_000 + np.arange(len(sizes)) * 7919 % 10_007
    known = {
        "timestamp": pa.array(times, pa.int64()).cast(TIMESTAMP),
        "value": pa.array([b"v" * size for size in sizes], pa.binary()),
    }
    schema = INPUT_SCHEMAS[name]
    columns = [known.get(field.name, pa.nulls(len(sizes), field.type)) for field in schema]
    made = log.encode(pa.RecordBatch.from_arrays(columns, schema=schema), 5)
    return bytes(made[0]), times


@pytest.mark.parametrize(("name", "log", "times"), FORMATS)
@pytest.mark.parametrize("shape", ["even", "large first", "small first"])
def test_each_record_has_its_time_however_much_room_is_made(
    name: str, log: ModuleType, times: ModuleType, shape: str
) -> None:
    large, small = [2000] * 700, [3] * (COUNT - 700)
    sizes = {"even": [20] * COUNT, "large first": large + small, "small first": small + large}
    data, expected = encoded(name, log, sizes[shape])
    for limit in (Timed(), Timed(max_bytes=300_000), Timed(max_records=1000)):
        position, seen = 0, 0
        while position < len(data):
            found = log.scan(data, position, expected_offset=5 + seen, limit=limit)
            assert np.array_equal(found.timestamps, expected[seen : seen + len(found)])
            assert np.array_equal(found.timestamps, times.timestamps_at(data, found.positions))
            plain = Limit(limit.max_records, limit.max_bytes)
            other = log.scan(data, position, expected_offset=5 + seen, limit=plain)
            assert np.array_equal(other.positions, found.positions)
            assert len(other.timestamps) == 0
            assert (other.end, other.stop, other.column_bytes) == (
                found.end,
                found.stop,
                found.column_bytes,
            )
            position, seen = found.end, seen + len(found)
        assert seen == COUNT
