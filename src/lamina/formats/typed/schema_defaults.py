"""Defaults and names of a schema, held against its types before the schema is kept.

A default is used long after it was set: when a later version reads what an earlier one wrote. One
that does not fit would make those records unreadable, so it is refused while somebody can mend it.

Rules.
1. Every default, of inner records too, fits its field in the encoding of the topic: an Avro default
   as Avro's bytes, one of JSON as the column that it fills.
2. All text can be written as JSON in UTF-8: half a surrogate pair is a name to Python, and infinity
   a number, and to nobody else.
"""

from __future__ import annotations

import json

from lamina.errors import SchemaError
from lamina.formats.typed import avro_text
from lamina.formats.typed.avro_value import Room, encode_default
from lamina.formats.typed.given_columns import default_scalar, plain_type
from lamina.formats.typed.schema_model import Field, Kind, Type, children, joined


def refuse_unfit_defaults(
    kind: Type, path: str = "", *, is_json: bool, room: Room | None = None
) -> None:
    """Raises SchemaError for a default that its field cannot have; all share one room."""
    room = room or Room()
    for field in kind.fields:
        here = joined(path, field.name)
        if field.default is not None:
            _refuse_unfit(field, here, None if is_json else room)
    for step, inner in children(kind):
        refuse_unfit_defaults(inner, joined(path, step), is_json=is_json, room=room)


def _refuse_unfit(field: Field, path: str, room: Room | None) -> None:
    if room is not None:
        encode_default(json.loads(field.default or "null"), field.type, path, room)
    elif field.default != "null" or not (field.type.is_nullable or field.type.kind == Kind.NULL):
        default_scalar(field, plain_type(field.type), path)


def refuse_unwritable(kind: Type) -> None:
    """Raises SchemaError for names, symbols and defaults that JSON in UTF-8 has no word for."""
    try:
        document = json.loads(avro_text.text_of(kind))
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        problem = f"a name, a symbol or a default holds half a character ({error.reason})"
        raise SchemaError(problem) from error
    except ValueError as error:
        raise SchemaError("a default is NaN or infinite, which JSON cannot say") from error
