"""Why a walk ended, in words; which zeros are prepared space; which reports are worth a word."""

from __future__ import annotations

import json

import pytest

from lamina.api import RecoveryReport
from lamina.formats.scan import Stop, is_prepared_space
from lamina.log.stops import describe_stop

ZEROED = "a record that is zeroed, or whose length reaches past the records after it"


@pytest.mark.parametrize("stop", Stop)
def test_every_end_has_its_own_words(stop: Stop) -> None:
    words = describe_stop(stop)
    assert words
    assert [each for each in Stop if describe_stop(each) == words] == [stop]
    assert (describe_stop(stop, resumes_at=7) == ZEROED) == (stop is Stop.TORN)
    assert words != ZEROED


STEP = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, STEP, STEP + 1, 2 * STEP + 5])
def test_zeros_to_the_end_are_prepared_space(size: int) -> None:
    data = b"\x01" + bytes(size)
    assert is_prepared_space(data, 1)
    assert not is_prepared_space(data, 0)


@pytest.mark.parametrize("at", [0, 63, 64, 65, STEP - 1, STEP, STEP + 1, 2 * STEP + 4])
def test_no_byte_but_zero_is(at: int) -> None:
    data = bytearray(2 * STEP + 5)
    data[at] = 1
    assert not is_prepared_space(data, 0)
    assert is_prepared_space(data, at + 1)


def test_a_report_is_notable_unless_it_only_cut_off_what_nobody_was_told_of() -> None:
    report = RecoveryReport()
    assert not report.is_notable
    report.add("cut", "/a", "torn", byte_range=(3, 9))
    assert not report.is_notable
    kept = RecoveryReport()
    kept.add("cut", "/a", "garbage", kept_in="/quarantine/a")
    assert kept.is_notable
    other = RecoveryReport()
    other.add("note", "/a", "a word")
    assert other.is_notable


def test_a_report_is_kept_in_order_and_as_json() -> None:
    report = RecoveryReport(milliseconds=1.5)
    report.add("cut", "/a", "torn", byte_range=(3, 9))
    report.add("gap", "/b", "lost")
    report.add("cut", "/c", "torn")
    assert [event.path for event in report.of("cut")] == ["/a", "/c"]
    found = json.loads(report.encode())
    assert found["milliseconds"] == 1.5
    assert [event["path"] for event in found["events"]] == ["/a", "/b", "/c"]
    assert (found["events"][0]["first_byte"], found["events"][0]["end_byte"]) == (3, 9)
    assert found["events"][1]["first_byte"] is None
