"""What can be wrong with one value, and what decoding a batch of values gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.typed.schema_model import Type, spelled

FINE, NO_VALUE, NO_ROOM = 0, -1, -2
BAD_NUMBER, BAD_LENGTH, BAD_TEXT, BAD_BRANCH, BAD_SYMBOL = 1, 2, 3, 4, 5
NULL_FOUND, LEFTOVER, TOO_MANY, TOO_LARGE, UNKNOWN_SCHEMA = 6, 7, 8, 9, 10
BAD_WIRE, BAD_DOCUMENT, MISSING_FIELD, OTHER_VERSION = 11, 12, 13, 14
OTHER_MESSAGE = 15

FAULTS: dict[int, str] = {
    BAD_NUMBER: "a number that does not end, or is out of range",
    BAD_LENGTH: "a length that reaches past the value",
    BAD_TEXT: "text that is not UTF-8",
    BAD_BRANCH: "a branch that the union does not have",
    BAD_SYMBOL: "a symbol that the enum does not have",
    NULL_FOUND: "a null where the schema has none",
    LEFTOVER: "bytes after the last field",
    TOO_MANY: "more items than the value can hold",
    TOO_LARGE: "more than one batch can hold",
    UNKNOWN_SCHEMA: "a schema id that nobody knows, or no schema id",
    BAD_WIRE: "a field of another wire type than the schema says",
    BAD_DOCUMENT: "not a JSON object that fits the schema",
    MISSING_FIELD: "no value for a field that must have one",
    OTHER_VERSION: "a version of the schema that the reader's version cannot read",
    OTHER_MESSAGE: "another message of the .proto file than the topic's schema is",
}
"""What each code means to a reader."""
_OF_A_FIELD = {BAD_DOCUMENT: "a value that does not fit"}
"""What a code means where a field is named."""


class Values(NamedTuple):
    """Values of records: bytes, and where each value starts and ends; -1 is a null value."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.Array) -> Values:
        """Takes a binary column whose buffers somebody has checked."""
        rows = len(column)
        _, offsets, data = column.buffers()
        raw_edges = np.frombuffer(offsets, dtype=np.int32, count=column.offset + rows + 1)
        edges = raw_edges[column.offset :].astype(np.int64)
        raw = np.frombuffer(data, dtype=np.uint8) if data is not None else _NO_BYTES
        starts = edges[:-1].copy()
        if column.null_count:
            starts[np.asarray(column.is_null())] = -1
        return cls(raw, starts, edges[1:])

    def size_bytes(self) -> int:
        """Returns how many bytes the values have together."""
        return int((self.ends - self.starts)[self.starts >= 0].sum())

    def behind(self, prefix: int) -> Values:
        """Returns the same values without their first bytes, which the caller has seen."""
        return self._replace(starts=np.where(self.starts < 0, -1, self.starts + prefix))

    def chosen(self, rows: NDArray[np.intp]) -> Values:
        """Returns some of the values."""
        return self._replace(starts=self.starts[rows], ends=self.ends[rows])


_NO_BYTES = np.zeros(1, dtype=np.uint8)


class Decoded(NamedTuple):
    """Columns, and for each row FINE, NO_VALUE or what is wrong with it, and in which field."""

    columns: list[pa.Array]
    codes: NDArray[np.int32]
    fields: NDArray[np.int32]
    """The place in `paths` of the field at fault; -1 for none."""
    paths: tuple[str, ...]
    kinds: tuple[Type | None, ...] = ()
    """What is expected at each path; None where the value as a whole is."""

    def fault(self, row: int) -> str:
        """Returns what is wrong with a row, as a reader is told: where, what, what is expected."""
        place, code = int(self.fields[row]), int(self.codes[row])
        path = self.paths[place] if 0 <= place < len(self.paths) else ""
        if not path:
            return FAULTS[code]
        kind = self.kinds[place] if place < len(self.kinds) else None
        expected = "" if kind is None else f"; expected {spelled(kind)}"
        return f"{path}: {_OF_A_FIELD.get(code, FAULTS[code])}{expected}"
