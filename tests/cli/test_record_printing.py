"""JSON is rendered by columns, and costs no more than text that shows the same."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lamina.cli.percent import KCAT, RPK, compile_format
from lamina.cli.record_printing import Read, envelopes, json_lines, rows
from tests.tidy.test_costs import steps

FEW, MANY = 100, 1_100


def read_of(count: int) -> Read:
    columns = {
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([7] * count, pa.timestamp("ms")),
        "key": pa.array([b"key"] * count, pa.binary()),
        "value": pa.array([b"a value"] * count, pa.binary()),
        "headers": pa.array(
            [[{"key": "h", "value": b"x"}]] * count,
            pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        ),
    }
    return Read("t", 0, pa.RecordBatch.from_pydict(columns), 0)


def steps_a_record(render: Any) -> float:
    few, many = read_of(FEW), read_of(MANY)
    return (steps(lambda: render(many)) - steps(lambda: render(few))) / (MANY - FEW)


@pytest.mark.parametrize(
    ("as_json", "text", "table"),
    [
        (json_lines, r"%t %p %o %d %k %v %h\n", RPK),
        (json_lines, r"%v\n", RPK),
        (envelopes, r"%t %p %o %T %k %s %h\n", KCAT),
        (envelopes, r"%s\n", KCAT),
    ],
)
def test_json_takes_no_more_steps_a_record_than_text(as_json: Any, text: str, table: Any) -> None:
    made = compile_format(text, table)
    by_text = steps_a_record(lambda read: b"".join(map(made.render, rows(read))))
    assert steps_a_record(as_json) <= by_text


def test_an_envelope_is_that_of_kcat() -> None:
    read = read_of(2)
    first, _ = envelopes(read).splitlines()
    assert json.loads(first) == {
        **{"topic": "t", "partition": 0, "offset": 0, "tstype": "create", "ts": 7, "broker": 0},
        **{"headers": ["h", "x"], "key": "key", "payload": "a value"},
    }
    bare = Read("t", 0, read.batch.drop_columns(["headers"]), 0)
    assert "headers" not in json.loads(envelopes(bare).splitlines()[0])
