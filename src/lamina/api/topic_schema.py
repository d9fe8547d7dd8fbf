"""What a typed topic says about its values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of a topic's schema.

    `text` is the canonical text, in Avro's language whatever the encoding. `key` is the column
    that becomes the record's key, empty for none. With `framing` "registry", each value begins
    with a zero byte and `id` in four bytes, as Confluent's serializers write them; "plain" values
    have nothing in front.
    """

    topic: str
    version: int
    id: int
    encoding: str
    framing: str
    key: str
    compatibility: str
    text: str
    columns: bytes
    """The Arrow schema in Arrow's own format; `arrow` reads it."""

    @property
    def arrow(self) -> pa.Schema:
        """The columns that a typed read gives, beside those that begin with `_`."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))
