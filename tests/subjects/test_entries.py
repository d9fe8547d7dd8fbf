"""The records of `_schemas`: what Confluent's registry writes is understood; nothing else hurts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.subjects import entries
from lamina.subjects.entries import Gone, LevelSet, ModeSet, Reference, Registered, Schema


def test_records_of_confluents_registry_are_understood() -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}'
    value = (
        b'{"subject":"s","version":2,"id":5,"md5":"aGk=","schemaType":"JSON","references":[{"name"'
        b':"n","subject":"o","version":1}],"metadata":null,"schema":"{}","offset":3,"deleted":true}'
    )
    made = Registered("s", 2, 5, Schema("{}", "JSON", (Reference("n", "o", 1),)), is_deleted=True)
    assert entries.decode(key, value) == made
    assert entries.decode(key, None) == Gone("s", 2)
    config = b'{"keytype":"CONFIG","subject":null,"magic":0}'
    assert entries.decode(config, b'{"compatibilityLevel":"FULL"}') == LevelSet("", "FULL")
    mode = b'{"keytype":"MODE","subject":"s","magic":0}'
    assert entries.decode(mode, None) == ModeSet("s")
    assert entries.decode(b'{"keytype":"NOOP","magic":0}', None) is None


def test_the_bytes_are_confluents() -> None:
    key, value = entries.encode(Registered("s", 1, 1, Schema('"string"')))
    assert key == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert value is not None
    assert json.loads(value) == {
        "subject": "s", "version": 1, "id": 1, "schema": '"string"', "deleted": False
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
)
WORDS = {
    "keytype": st.sampled_from(["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "NOOP"]) | JSON,
    "subject": st.sampled_from(["s", None, "", ":.x:"]) | JSON,
    "version": st.integers(-1, 3) | JSON,
    "id": st.integers(-1, 3) | JSON,
    "schema": st.text() | JSON,
    "schemaType": st.sampled_from(["AVRO", "JSON", "XML"]) | JSON,
    "references": JSON,
    "metadata": JSON,
    "compatibilityLevel": st.sampled_from(["FULL", "no"]) | JSON,
    "mode": JSON,
    "deleted": JSON,
}


@given(st.fixed_dictionaries({}, optional=WORDS), st.fixed_dictionaries({}, optional=WORDS))
def test_any_document_is_understood_or_passed_over(key: Any, value: Any) -> None:
    found = entries.decode(json.dumps(key).encode(), json.dumps(value).encode())
    if found is not None:
        assert entries.decode(*entries.encode(found)) == found


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[", b"7", b"9" * 5000, b"[" * 100_000, b'{"keytype":7}', None]
)
def test_what_is_no_document_is_passed_over(data: bytes | None) -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert entries.decode(data, b"{}") is None
    if data:
        assert entries.decode(key, data) is None
