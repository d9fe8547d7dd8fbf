"""The archive's location, the groups' roster and a sink's transaction: read whole or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import (
    archive_location,
    archive_proof,
    group_roster,
    lease_file,
    seat_file,
    sink_transaction,
    strict_json,
    tail_boundary,
)
from lamina.formats.documents.archive_location import ArchiveLocation
from lamina.formats.documents.archive_proof import ArchiveProof
from lamina.formats.documents.group_roster import Listed
from lamina.formats.documents.lease_file import Lease
from lamina.formats.documents.seat_file import SERVING, SeatFile
from lamina.formats.documents.sink_transaction import Part, Run, State, Transaction
from lamina.formats.documents.tail_boundary import TailBoundary

RUN = Run("orders", 1, 2, 9000, 64, 1024, 305419896)
TRANSACTION = Transaction("billing", 17, "query", (Part("3f.part", (RUN, RUN)), Part("4", ())))
STATE = State("billing", 17, "query")
LISTED = [Listed("a", 1, "z", [0, 7]), Listed("b", 2, "g", []), Listed("b", 1, "h", [5])]
LEASE = Lease(7, "b1/6f", "grpc://a:9300", 15_000, 41)


class File(NamedTuple):
    """How a file is written and read, and what it says."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    value: Any

    @property
    def raw(self) -> bytes:
        return self.encode(self.value)


FILES = {
    "location": File(
        archive_location.encode, archive_location.decode, ArchiveLocation("s3://bucket/prefix")
    ),
    "proof": File(
        archive_proof.encode, archive_proof.decode, ArchiveProof(7, ("conditional create: no",))
    ),
    "lease": File(lease_file.encode, lease_file.decode, LEASE),
    "seat": File(seat_file.encode, seat_file.decode, SeatFile(7, SERVING)),
    "boundary": File(tail_boundary.encode, tail_boundary.decode, TailBoundary(912, 7)),
    "roster": File(group_roster.encode, group_roster.decode, LISTED),
    "transaction": File(
        sink_transaction.encode_transaction, sink_transaction.decode_transaction, TRANSACTION
    ),
    "state": File(sink_transaction.encode_state, sink_transaction.decode_state, STATE),
}
FORMS = pytest.mark.parametrize("name", FILES)


def changed(name: str, **fields: Any) -> bytes:
    """The file with other fields, under a seal that fits them."""
    document = json.loads(FILES[name].raw)
    del document[strict_json.SEAL]
    document |= fields
    document = {key: value for key, value in document.items() if value is not None}
    return json.dumps(document | {strict_json.SEAL: strict_json.seal(document)}).encode()


@FORMS
def test_what_was_written_is_read(name: str) -> None:
    file = FILES[name]
    assert file.decode(file.raw) == file.value
    assert file.raw.endswith(b"}\n")
    assert file.decode(changed(name)) == file.value


@FORMS
def test_no_changed_byte_goes_unseen(name: str) -> None:
    file = FILES[name]
    raw = file.raw
    for position in range(len(raw)):
        spoilt = bytearray(raw)
        spoilt[position] ^= 1
        try:
            found = file.decode(bytes(spoilt))
        except CorruptData:
            continue
        assert found == file.value, "white space at most"


@FORMS
def test_a_newer_file_is_named_as_one(name: str) -> None:
    with pytest.raises(NewerFormat):
        FILES[name].decode(changed(name, version=2))


@FORMS
def test_a_field_too_many_or_too_few_is_refused(name: str) -> None:
    with pytest.raises(CorruptData, match="unknown field"):
        FILES[name].decode(changed(name, more=1))
    for field in json.loads(FILES[name].raw):
        if field not in ("version", strict_json.SEAL):
            with pytest.raises(CorruptData, match=f"has no '{field}'"):
                FILES[name].decode(changed(name, **{field: None}))


def test_an_empty_location_is_refused() -> None:
    with pytest.raises(CorruptData, match="location is empty"):
        archive_location.decode(changed("location", url=""))


@pytest.mark.parametrize("fields", [{"epoch": 0}, {"ttl_ms": 0}, {"holder": ""}])
def test_a_lease_of_nobody_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match="no epoch, no time or nobody"):
        lease_file.decode(changed("lease", **fields))


@pytest.mark.parametrize("problems", [[1], [""], [None], [["a"]]])
def test_a_problem_that_is_no_text_is_refused(problems: list[Any]) -> None:
    with pytest.raises(CorruptData, match="is not text"):
        archive_proof.decode(changed("proof", problems=problems))


@pytest.mark.parametrize("acked", [[-1], [True], ["1"], [0, 1, -5]])
def test_a_group_that_acked_no_offset_is_refused(acked: list[Any]) -> None:
    groups = [{"topic": "a", "epoch": 1, "group": "g", "acked_until": acked}]
    with pytest.raises(CorruptData, match="group 0 has acked what no offset is"):
        group_roster.decode(changed("roster", groups=groups))


def test_a_group_of_other_fields_or_none_is_refused_by_its_number() -> None:
    good = {"topic": "a", "epoch": 1, "group": "g", "acked_until": [1]}
    with pytest.raises(CorruptData, match="group 1 has no 'topic'"):
        group_roster.decode(changed("roster", groups=[good, {}]))
    with pytest.raises(CorruptData, match="group 1 is not a JSON object"):
        group_roster.decode(changed("roster", groups=[good, 7]))


def test_equal_rosters_are_equal_bytes() -> None:
    assert group_roster.encode(LISTED) == group_roster.encode(reversed(LISTED))
    assert group_roster.decode(group_roster.encode([])) == []


def test_a_partition_that_is_not_listed_begins_at_nothing() -> None:
    listed = Listed("a", 1, "g", [3, 4])
    assert [listed.at(partition) for partition in range(4)] == [3, 4, 0, 0]


@pytest.mark.parametrize("part", ["../other.part", "a/b", ".hidden", ".."])
def test_a_part_that_leads_out_of_its_directory_is_refused(part: str) -> None:
    with pytest.raises(CorruptData, match="leads out of its directory"):
        sink_transaction.decode_transaction(
            changed("transaction", parts=[{"name": part, "runs": []}])
        )


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([7], "part 0 is not a JSON object"),
        ([{"name": "a"}], "part 0 has no 'runs'"),
        ([{"name": "a", "runs": [{}]}], "a run has no 'topic'"),
        ([{"name": "a", "runs": [[]]}], "a run is not a JSON object"),
    ],
)
def test_parts_and_runs_of_other_fields_are_refused(parts: list[Any], why: str) -> None:
    with pytest.raises(CorruptData, match=why):
        sink_transaction.decode_transaction(changed("transaction", parts=parts))
