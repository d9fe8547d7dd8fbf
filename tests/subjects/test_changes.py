"""What a request to the registry writes, and what is refused by which of Confluent's numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamina.subjects import changes, entries
from lamina.subjects.book import Book, anything
from lamina.subjects.changes import asked
from lamina.subjects.entries import Registered
from lamina.subjects.refusal_codes import Refused

TEXT = '{"type":"string"}'
POINT = """syntax = "proto3"; package geo; message Point { double x = 1; double y = 2; }"""
SHUT = '{"title":"' + "]" * 100_000 + '","not":'
"""The beginning of a text whose brackets say, if those inside a text count, that it is shallow."""
DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)


def record(*fields: dict[str, Any], name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


ONE = record({"name": "a", "type": "int"})
MORE = record({"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": ""})
STRICT = record({"name": "a", "type": "int"}, {"name": "b", "type": "string"})


class Registry:
    """A book, and each entry written as bytes and read back before it is applied."""

    def __init__(self) -> None:
        self.book = Book()
        self.records: list[tuple[bytes, bytes | None]] = []

    def write(self, made: list[entries.Entry]) -> None:
        for entry in made:
            record = entries.encode(entry)
            assert entries.decode(*record) == entry
            self.records.append(record)
            self.book.apply(entry)

    def register(self, subject: str, schema: str, **more: Any) -> Registered:
        body = {"schema": schema, **more}
        made, version = changes.registering(self.book, subject, asked(body), anything)
        self.write(made)
        return version

    def refused(self, subject: str, schema: str, **more: Any) -> int:
        with pytest.raises(Refused) as caught:
            self.register(subject, schema, **more)
        return caught.value.code

    def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> Any:
        if version is None:
            made, gone = changes.deleting_subject(self.book, subject, permanent=permanent)
            self.write(made)
            return gone
        made, number = changes.deleting_version(self.book, subject, version, permanent=permanent)
        self.write(made)
        return number

    def numbers(self, subject: str, *, deleted: bool = False) -> list[tuple[int, int]]:
        return [(each.version, each.id) for each in self.book.versions(subject, deleted=deleted)]

    def reread(self) -> Book:
        """The book that the records make from the beginning."""
        made = Book()
        for record in self.records:
            entry = entries.decode(*record)
            assert entry is not None
            made.apply(entry)
        return made


@pytest.fixture
def registry() -> Registry:
    return Registry()


def code_of(call: Any, *given: Any, **more: Any) -> int:
    with pytest.raises(Refused) as caught:
        call(*given, **more)
    return caught.value.code


def test_ids_are_dense_and_the_same_schema_has_the_same_one_everywhere(registry: Registry) -> None:
    assert registry.register("a-value", ONE).id == 1
    assert registry.register("a-value", MORE).id == 2
    assert registry.register("b-value", MORE).id == 2
    assert registry.register("c-value", TEXT).id == 3
    again = registry.register("a-value", ONE)
    assert (again.id, again.version) == (1, 1), "nothing is written for what is there"
    assert len(registry.records) == 4
    assert registry.reread() == registry.book


@pytest.mark.parametrize(
    ("one", "other", "language"),
    [
        (TEXT, '"string"', "AVRO"),
        (ONE, json.dumps(json.loads(ONE), indent=2, sort_keys=True), "AVRO"),
        (
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":'
            '"enum","name":"E","symbols":["X"]}},{"name":"b","type":"E"}]}',
            '{"type":"record","name":"n.R","fields":[{"name":"a","type":{"type":'
            '"enum","name":"n.E","symbols":["X"]}},{"name":"b","type":["n.E"]}]}',
            None,
        ),
        (
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":'
            '"enum","name":"E","symbols":["X"]}},{"name":"b","type":"E"}]}',
            '{"type":"record","name":"n.R","fields":[{"name":"a","type":{"type":'
            '"enum","name":"n.E","symbols":["X"]}},{"name":"b","type":"n.E"}]}',
            "AVRO",
        ),
        ('{"type":"object","title":"t"}', '{ "title": "t", "type": "object" }', "JSON"),
        ('{"type":"object","title":"t"}', '{"type":"object","title":"u"}', None),
        (POINT, POINT.replace(";", ";\n// where it is\n"), "PROTOBUF"),
    ],
)
def test_layout_makes_no_new_schema_and_meaning_does(
    registry: Registry, one: str, other: str, language: str | None
) -> None:
    more = {"schemaType": language or ("JSON" if "object" in one else "AVRO")}
    first, second = registry.register("a", one, **more), registry.register("b", other, **more)
    assert (first.id == second.id) is (language is not None)


LEVELS = [
    ("BACKWARD", [ONE, MORE], True),
    ("BACKWARD", [ONE, STRICT], False),
    ("FORWARD", [ONE, STRICT], True),
    ("FORWARD", [STRICT, ONE], False),
    ("FULL", [ONE, MORE], True),
    ("FULL", [ONE, STRICT], False),
    ("NONE", [ONE, TEXT], True),
    ("BACKWARD", [ONE, MORE, STRICT], True),
    ("BACKWARD_TRANSITIVE", [ONE, MORE, STRICT], False),
    ("FORWARD", [STRICT, MORE, ONE], True),
    ("FORWARD_TRANSITIVE", [STRICT, MORE, ONE], False),
    ("FULL_TRANSITIVE", [ONE, MORE], True),
]


@pytest.mark.parametrize(("level", "texts", "is_fine"), LEVELS)
def test_each_level_of_compatibility(
    registry: Registry, level: str, texts: list[str], is_fine: bool
) -> None:
    for subject in ("", "s"):
        registry.write([entries.LevelSet(subject, level)])
        registry.write([entries.LevelSet("", "NONE")] if subject else [])
    for text in texts[:-1]:
        registry.register("s", text)
    if is_fine:
        assert registry.register("s", texts[-1]).version == len(texts)
    else:
        assert registry.refused("s", texts[-1]) == 409
        assert len(registry.numbers("s")) == len(texts) - 1


ENUM = {"type": "enum", "symbols": ["A"]}
FIXED = {"type": "fixed", "size": 3}


@pytest.mark.parametrize(
    ("old", "new", "is_fine"),
    [
        (record(name="A"), record(name="B"), False),
        (record(name="a.A"), record(name="b.A"), True),
        (record(name="A"), json.dumps(json.loads(record(name="B")) | {"aliases": ["A"]}), True),
        (json.dumps({**ENUM, "name": "E"}), json.dumps({**ENUM, "name": "F"}), False),
        (json.dumps({**FIXED, "name": "E"}), json.dumps({**FIXED, "name": "F"}), False),
        (
            record({"name": "a", "type": {**ENUM, "name": "E"}}),
            record({"name": "a", "type": {**ENUM, "name": "x.E"}}),
            True,
        ),
        (
            record({"name": "a", "type": {**ENUM, "name": "E"}}),
            record({"name": "a", "type": ["null", {**ENUM, "name": "F"}]}),
            False,
        ),
        # Of an Arrow schema, which has no names.
        (
            record({"name": "a", "type": {**FIXED, "name": "record_a"}}, name="record"),
            record({"name": "a", "type": {**FIXED, "name": "F"}}, name="Order"),
            True,
        ),
    ],
)
def test_types_keep_the_names_that_readers_of_avro_go_by(
    registry: Registry, old: str, new: str, is_fine: bool
) -> None:
    registry.register("s", old)
    if is_fine:
        assert registry.register("s", new).version == 2
    else:
        assert registry.refused("s", new) == 409


def test_a_schema_of_another_language_follows_only_where_nothing_is_asked(
    registry: Registry,
) -> None:
    registry.register("s", ONE)
    assert registry.refused("s", POINT, schemaType="PROTOBUF") == 409
    registry.write([entries.LevelSet("s", "NONE")])
    assert registry.register("s", POINT, schemaType="PROTOBUF").version == 2


def bomb(levels: int) -> dict[str, Any]:
    """A record that holds ten of the next one, and none of them names it."""
    fields: list[dict[str, Any]] = [{"name": "a", "type": "int", "default": 0}]
    if levels:
        items = bomb(levels - 1)
        fields = [{"name": "f", "type": {"type": "array", "items": items}, "default": [{}] * 10}]
    return {"type": "record", "name": f"R{levels}", "fields": fields}


@pytest.mark.parametrize("of", ["records", "branches"])
def test_a_default_that_unfolds_without_end_is_refused(registry: Registry, of: str) -> None:
    if of == "records":
        text = json.dumps(bomb(12))
    else:
        names = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(2_000)]
        items = {"type": "array", "items": [*names, "int"]}
        text = record({"name": "a", "type": items, "default": [7] * 2_000})
    with pytest.raises(Refused, match="unfold into too much"):
        registry.register("s", text)


@pytest.mark.parametrize(
    ("kind", "default", "is_fine"),
    [
        ("int", 1, True),
        ("int", "one", False),
        ("int", 1.5, False),
        ("double", 1, True),
        (["null", "int"], None, True),
        (["int", "string"], "one", True),
        (["int", "string"], True, False),
        ({"type": "array", "items": "R"}, [], True),
        ({**ENUM, "name": "E"}, "A", True),
        ({**ENUM, "name": "E"}, "B", False),
    ],
)
def test_a_default_that_does_not_fit_is_refused(
    registry: Registry, kind: Any, default: Any, is_fine: bool
) -> None:
    schema = record({"name": "a", "type": kind, "default": default})
    if not is_fine:
        assert registry.refused("s", schema) == 42201
    registry.write(
        changes.setting_mode(registry.book, "s", "READWRITE" if is_fine else "IMPORT", force=False)
    )
    assert registry.register("s", schema).version == 1, "what others let in is taken over"


# ---------------------------------------------------------------------- references


def test_references_are_resolved_in_all_languages(registry: Registry) -> None:
    registry.register("street", record({"name": "no", "type": "int"}, name="com.Street"))
    street = [{"name": "com.Street", "subject": "street", "version": 1}]
    address = record({"name": "street", "type": "com.Street"}, name="com.Address")
    registry.register("address", address, references=street)
    person = record({"name": "home", "type": "com.Address"}, {"name": "work", "type": "com.Street"})
    both = [{"name": "com.Address", "subject": "address", "version": 1}, *street]
    version = registry.register("person", person, references=both)
    assert version.schema.references[0].subject == "address"
    assert registry.refused("person2", person) == 42201

    registry.register("geo", POINT, schemaType="PROTOBUF")
    path = 'syntax = "proto3"; import "geo.proto"; message Path { repeated geo.Point points = 1; }'
    geo = [{"name": "geo.proto", "subject": "geo", "version": 1}]
    registry.register("path", path, schemaType="PROTOBUF", references=geo)
    assert registry.refused("path2", path, schemaType="PROTOBUF") == 42201

    registry.register("size", '{"type": "integer"}', schemaType="JSON")
    box = '{"type": "object", "properties": {"w": {"$ref": "size.json"}}}'
    size = [{"name": "size.json", "subject": "size", "version": 1}]
    registry.register("box", box, schemaType="JSON", references=size)
    assert registry.refused("box2", box, schemaType="JSON") == 42201
    assert registry.reread() == registry.book


def test_a_reference_to_nothing_or_to_what_may_not_be_seen_is_refused(registry: Registry) -> None:
    registry.register("street", record({"name": "no", "type": "int"}, name="Street"))
    text = record({"name": "street", "type": "Street"}, name="Address")
    for subject, version in (("street", 2), ("nothing", 1)):
        wrong = [{"name": "Street", "subject": subject, "version": version}]
        assert registry.refused("address", text, references=wrong) == 42201
    body = {"schema": text, "references": [{"name": "Street", "subject": "street", "version": 1}]}
    code = code_of(
        changes.registering, registry.book, "my-value", asked(body), lambda name: name == "my-value"
    )
    assert code == 42201


def test_what_is_referred_to_is_not_deleted(registry: Registry) -> None:
    registry.register("street", record({"name": "no", "type": "int"}, name="Street"))
    text = record({"name": "street", "type": "Street"}, name="Address")
    named = [{"name": "Street", "subject": "street", "version": 1}]
    registry.register("address", text, references=named)
    assert code_of(registry.delete, "street") == 42206
    assert code_of(registry.delete, "street", 1) == 42206
    assert [each.subject for each in registry.book.referring("street", 1)] == ["address"]
    registry.delete("address")
    assert registry.delete("street") == [1]


def test_what_is_referred_to_after_it_was_deleted_does_not_go_for_good(registry: Registry) -> None:
    registry.register("street", record({"name": "no", "type": "int"}, name="Street"))
    registry.delete("street")
    text = record({"name": "street", "type": "Street"}, name="Address")
    named = [{"name": "Street", "subject": "street", "version": 1}]
    registry.register("address", text, references=named)
    assert code_of(registry.delete, "street", 1, permanent=True) == 42206
    assert code_of(registry.delete, "street", permanent=True) == 42206
    registry.delete("address")
    assert registry.delete("street", permanent=True) == [1]


# ---------------------------------------------------------------------- deleting


def test_deleting_for_now_and_for_good(registry: Registry) -> None:
    registry.register("s", ONE)
    registry.register("s", MORE)
    assert code_of(registry.delete, "s", permanent=True) == 40405
    assert code_of(registry.delete, "s", 1, permanent=True) == 40407
    assert registry.delete("s", 1) == 1
    assert code_of(registry.delete, "s", 1) == 40406
    assert registry.numbers("s") == [(2, 2)]
    assert registry.numbers("s", deleted=True) == [(1, 1), (2, 2)]
    assert registry.delete("s", 1, permanent=True) == 1
    assert code_of(registry.delete, "s", 1) == 40402
    assert registry.delete("s") == [2]
    assert code_of(registry.delete, "s") == 40404
    assert code_of(registry.delete, "t") == 40401
    assert registry.delete("s", permanent=True) == [2]
    assert registry.book.subjects == {}
    assert registry.reread() == registry.book


def test_an_id_is_never_given_twice(registry: Registry) -> None:
    for text in (ONE, MORE):
        registry.register("s", text)
    registry.delete("s")
    registry.delete("s", permanent=True)
    assert registry.register("s", MORE).id == 3
    assert registry.reread().next_id == 4


def test_what_was_deleted_for_now_comes_back_under_its_id(registry: Registry) -> None:
    registry.register("s", ONE)
    registry.delete("s")
    version = registry.register("s", ONE)
    assert (version.id, version.version) == (1, 2)


# ---------------------------------------------------------------------- modes


def test_modes_keep_a_subject_as_it_is_or_take_ids_from_elsewhere(registry: Registry) -> None:
    registry.register("s", ONE)
    registry.write([entries.ModeSet("s", "READONLY")])
    assert registry.register("s", ONE).id == 1, "what is there is only looked up"
    assert registry.refused("s", MORE) == 42205
    assert code_of(registry.delete, "s") == 42205
    assert registry.refused("t", ONE, id=77) == 42205
    registry.register("u", ONE)
    registry.delete("u")
    registry.write([entries.ModeSet("", "READONLY")])
    assert code_of(registry.delete, "u", permanent=True) == 42205
    assert code_of(registry.delete, "u", 1, permanent=True) == 42205
    registry.write([entries.ModeSet("")])
    registry.delete("u", permanent=True)
    registry.write(changes.setting_mode(registry.book, "t", "IMPORT", force=False))
    assert registry.register("t", STRICT, id=77, version=5).version == 5
    assert registry.refused("t", MORE, id=77, version=6) == 42205, "an id is of one schema"
    assert registry.refused("t", MORE, version=5) == 42205, "and a version, too"
    assert code_of(changes.setting_mode, registry.book, "", "IMPORT", force=False) == 42205
    registry.write([entries.ModeSet("", "READONLY_OVERRIDE")])
    assert registry.refused("t", MORE) == 42205
    assert registry.book.next_id == 78


def test_settings_are_taken_back(registry: Registry) -> None:
    assert code_of(changes.taking_back, registry.book, "s", is_level=True) == 40408
    assert code_of(changes.taking_back, registry.book, "s", is_level=False) == 40409
    registry.write([entries.LevelSet("s", "FULL"), entries.ModeSet("s", "READONLY")])
    made, was = changes.taking_back(registry.book, "s", is_level=True)
    registry.write(made)
    assert (was, registry.book.level("s")) == ("FULL", "BACKWARD")
    assert code_of(changes.checked_level, "sideways") == 42203
    assert code_of(changes.checked_mode, 7) == 42204
    registry.write([entries.LevelSet("s", "NONE")])
    registry.write([entries.ModeSet("s")])
    registry.register("s", ONE)
    registry.delete("s")
    assert registry.book.levels == {}, "a subject that is deleted leaves none behind"


# ---------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 42201),
        ({"schema": 7}, 42201),
        ({"schema": "  "}, 42201),
        ({"schema": "{"}, 42201),
        ({"schema": '{"type":"record"}'}, 42201),
        ({"schema": '"nothing"'}, 42201),
        ({"schema": TEXT, "schemaType": "XML"}, 42201),
        ({"schema": TEXT, "schemaType": 7}, 42201),
        ({"schema": TEXT, "id": 1 << 31}, 42201),
        ({"schema": TEXT, "id": "1"}, 42201),
        ({"schema": TEXT, "version": True}, 42201),
        ({"schema": TEXT, "references": {}}, 42201),
        ({"schema": TEXT, "references": [{"name": "a"}]}, 42201),
        ({"schema": TEXT, "references": [{"name": "a", "subject": "b", "version": 0}]}, 42201),
        ({"schema": TEXT, "references": [None] * 300}, 42201),
        ({"schema": TEXT, "strange": 1}, 42201),
        ({"schema": "[" * 5000 + "]" * 5000}, 42201),
        ({"schema": "7" * 5000}, 42201),
        ({"schema": '{"type":"fixed","name":"f","size":' + "9" * 5000 + "}"}, 42201),
        ({"schema": '"' + "x" * (1 << 20) + '"'}, 42201),
        ({"schema": "7" * 5000, "schemaType": "JSON"}, 42201),
        ({"schema": '{"type":"wide"}', "schemaType": "JSON"}, 42201),
        ({"schema": '{"$ref":"#/nothing/there"}', "schemaType": "JSON"}, 42201),
        ({"schema": '{"$ref":"http://127.0.0.1/x.json"}', "schemaType": "JSON"}, 42201),
        ({"schema": '{"anyOf":[]}', "schemaType": "JSON"}, 42201),
        ({"schema": '{"type":"record","name":"R","doc":"\ud800","fields":[]}'}, 42201),
        ({"schema": '{"const":NaN}', "schemaType": "JSON"}, 42201),
        ({"schema": SHUT + "[" * 50_000, "schemaType": "JSON"}, 42201),
        ({"schema": SHUT + '{"not":' * 300 + "true" + "}" * 301, "schemaType": "JSON"}, 42201),
        ({"schema": TEXT, "metadata": 5}, 42201),
        ({"schema": TEXT, "metadata": {"properties": {"a": float("nan")}}}, 42201),
        ({"schema": TEXT, "metadata": {"properties": {"a": "\udc00"}, "x": DEEP}}, 42201),
        ({"schema": TEXT, "ruleSet": DEEP}, 42201),
        ({"schema": "message {", "schemaType": "PROTOBUF"}, 42201),
        ({"schema": "AAAA", "schemaType": "PROTOBUF"}, 42201),
        ({"schema": 'import "/etc/passwd"; message A {}', "schemaType": "PROTOBUF"}, 42201),
    ],
)
def test_what_is_no_schema_is_refused(registry: Registry, body: dict[str, Any], code: int) -> None:
    with pytest.raises(Refused) as caught:
        changes.registering(registry.book, "s", asked(body), anything)
    assert caught.value.code == code
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["", ":.ctx:s", "a\nb", "x" * 2000, "\ud800"])
def test_what_is_no_subject_is_refused(name: str) -> None:
    assert code_of(changes.checked_subject, name) == 42208


def test_the_default_context_may_be_named() -> None:
    assert changes.checked_subject(":.:orders-value") == "orders-value"


@pytest.mark.parametrize("text", ["0", "-2", "x", "", "1.0", str(1 << 31), "9" * 5000, "¹"])
def test_what_is_no_version_is_refused(text: str) -> None:
    assert code_of(changes.checked_version, text) == 42202


def test_circles_of_references_end(registry: Registry) -> None:
    """Nobody registers one; but whoever writes the topic may."""
    named = (entries.Reference("B", "b", 1),), (entries.Reference("A", "a", 1),)
    text = record({"name": "x", "type": "B"}, name="A")
    registry.book.apply(Registered("a", 1, 1, entries.Schema(text, references=named[0])))
    registry.book.apply(Registered("b", 1, 2, entries.Schema(text, references=named[1])))
    assert (
        registry.refused("c", text, references=[{"name": "A", "subject": "a", "version": 1}])
        == 42201
    )


def test_records_that_contradict_others_change_nothing(registry: Registry) -> None:
    registry.register("s", ONE)
    before = registry.reread()
    registry.book.apply(Registered("t", 1, 1, entries.Schema(TEXT)))
    registry.book.apply(entries.Gone("nothing", 4))
    registry.book.apply(entries.LevelSet("s", "SIDEWAYS"))
    assert registry.book == before
