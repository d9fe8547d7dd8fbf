"""What a walk over a segment's frames says of those that one index cannot describe."""

from __future__ import annotations

from lamina.formats.scan import Stop
from lamina.formats.wal import log
from lamina.records import prepare
from lamina.wal import segments
from lamina.wal.segments import Segment
from lamina_torture.simulated import SimulatedFiles

TOPIC_ID = 5


def frame(sequence: int) -> bytes:
    rows = prepare([b"value %d" % sequence], "wal", now_ms=1)
    data, _ = log.encode(rows, topic_id=TOPIC_ID, base_sequence=sequence, durable=True)
    return data.tobytes()[1:]


def test_frames_too_far_for_the_index_are_damage_behind_the_last_that_fits() -> None:
    near, files = b"".join(map(frame, (1, 2, 3))), SimulatedFiles()
    segment = Segment(TOPIC_ID, "", 1, 1, 0, 0, 0, 0, sealed=True)
    whole = near + frame(1 << 40)
    files.create(segment.path("data")).write_at(0, whole)
    found = segments.walk(files, segment)
    assert (found.frames, found.end_byte, len(found.entries)) == (3, len(near), 3)
    (damage,) = found.damages
    assert (damage.first_sequence, damage.end_sequence) == (4, 4)
    assert (damage.first_byte, damage.end_byte) == (len(near), len(whole))
    assert damage.stop is Stop.BAD_OFFSET
