"""Typed topics: values as columns, by a program that is made of the schema.

A value is bytes to the rest of Lamina. Here a batch of values becomes Arrow columns, and columns
become values, without one record ever being a Python object. It goes in three steps.

**A schema is a value.** `schema_model.py` has the types: a record, its fields, what they hold.
Everything that a user may bring is turned into it: `arrow_types.py` (both ways), `avro_text.py`
(both ways; its text is also how a schema is kept), `json_schema.py`, `declared_classes.py`
(dataclasses, Pydantic), `protobuf_schema.py`. `schema_source.py` chooses among them, and
`schema_defaults.py` holds defaults and names against what they are used for.

Protobuf has files rather than schemas: `protobuf_file.py` is one as a value, and its canonical
text; `protobuf_text.py` and `protobuf_descriptor.py` read the two forms that it comes in, and
`protobuf_numbers.py` gives schemas of elsewhere the numbers that a message needs.

**Two schemas make a program.** The writer of a value and its reader may know different versions.
`evolution.py` (`protobuf_rules.py`, by number) says whether one can read the other;
`avro_program.py` then compiles the pair into
integers: the writer's order of fields, the reader's columns, constants for
what was not written (`avro_value.py`).

`protobuf_program.py` compiles a message into tables, for its fields come in any order, and
`protobuf_layout.py` into steps that write it from its end, where lengths are known.

For JSON, `json_program.py` makes tables of a plain schema, and `json_scan.py` is the kernel that
reads plain documents by them (`json_leaves.py` at the leaves); all others `json_decode.py` gives
to Arrow's own reader, and `json_misfit.py` finds the field at fault in a bad one. `json_encode.py`
has a program of pieces of text, and `clock_texts.py` the times that are written and read as such.

**A kernel runs the program over a batch.** `avro_decode.py` and `avro_encode.py` are interpreters
of a few dozen lines each, `protobuf_decode.py` and `protobuf_encode.py` their larger sisters
(`protobuf_values.py` at the leaves), with `protobuf_maps.py` for keys that come twice and
`protobuf_framing.py` for what Confluent puts in front. `decimal_bytes.py` has the numbers that both
write. `column_rooms.py` is the memory that decoding fills, `given_columns.py` the memory that
encoding reads. `value_codec.py` chooses the program by the id in front of a value, `typed_scan.py`
does what a reader asks for with bad rows.

Rules.
1. Bytes are hostile, schemas too: every length is checked before it is used, and nothing is
   allocated by what a value claims.
2. A bad value never stops a batch. Its row is null and has a code (`row_faults.py`); the reader
   decides what that means.
3. What has no columns (unions of several types, types that contain themselves) is refused when a
   schema is set, never when a record is read.
"""
