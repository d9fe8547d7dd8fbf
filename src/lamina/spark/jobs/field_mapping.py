"""What becomes of fields that a target's format cannot keep: said by the user, or refused.

| rule            | meaning                                                              |
|-----------------|----------------------------------------------------------------------|
| `FIELD=drop`    | the field is lost, on purpose                                        |
| `FIELD=none`    | no record has it; the job stops, with nothing stored, if one does    |
| `key=tag`, `tag=key` | the one becomes the other                                       |
| `tag=header:NAME`    | the tag becomes a header                                        |
| `value=empty`   | a tombstone becomes an empty value, where a format has no null ones  |

Rule: every field that would be lost needs a rule before anything starts; none has a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import InvalidRequest, UnsupportedField
from lamina.records import KEPT_COLUMNS, NULL_VALUES

DROP, NONE, EMPTY, HEADER = "drop", "none", "empty", "header:"
UNREAD = ("node",)
"""Fields that the source does not give: they can only be dropped."""

Mapped = dict[str, str]


def parse(rules: Iterable[str]) -> Mapped:
    """Reads `field=rule` pairs."""
    found: Mapped = {}
    for pair in rules:
        name, separator, rule = pair.partition("=")
        if not separator or not name or not rule:
            raise InvalidRequest(f"a rule is FIELD=drop, FIELD=none or FIELD=FIELD, not {pair!r}")
        if name in found:
            raise InvalidRequest(f"field {name!r} has two rules")
        found[name] = rule
    return found


def lost_fields(source: str, target: str) -> list[str]:
    """Returns the fields of a source's format that a target's cannot keep."""
    kept = KEPT_COLUMNS[target]
    lost = [name for name in KEPT_COLUMNS[source] if name not in kept]
    if source in NULL_VALUES and target not in NULL_VALUES:
        lost.append("value")
    return lost


def check(rules: Mapped, source: str, target: str) -> None:
    """Raises unless every field that is lost has a rule, and every rule a field."""
    lost = lost_fields(source, target)
    for name, rule in rules.items():
        if name not in lost:
            raise InvalidRequest(f"{name}={rule}: nothing to map, {target} keeps all of it")
        _check_rule(name, rule, KEPT_COLUMNS[target])
    open_ones = [name for name in lost if name not in rules]
    if open_ones:
        hints = ", ".join(f"--map {name}={_hint(name, target)}" for name in open_ones)
        raise UnsupportedField(
            f"format {target} cannot keep {_shown(open_ones)} of {source}; say what becomes of it:"
            f" {hints}"
        )


def _shown(names: list[str]) -> str:
    return " and ".join("null values" if name == "value" else f"the {name}" for name in names)


def _hint(name: str, target: str) -> str:
    if name == "value":
        return "empty|none"
    if name in UNREAD:
        return DROP
    other = {"key": "tag", "tag": "key"}.get(name)
    more = f"{other}|" if other in KEPT_COLUMNS[target] else ""
    return f"{more}drop|none"


def _check_rule(name: str, rule: str, kept: tuple[str, ...]) -> None:
    allowed = {EMPTY, NONE} if name == "value" else {DROP} if name in UNREAD else {DROP, NONE}
    if {name, rule} == {"key", "tag"} and rule in kept:
        allowed.add(rule)
    if name == "tag" and rule.startswith(HEADER) and rule != HEADER and "headers" in kept:
        allowed.add(rule)
    if rule not in allowed:
        raise InvalidRequest(f"{name}={rule} is not a rule here; there are {sorted(allowed)}")


def apply(batch: pa.RecordBatch, rules: Mapping[str, str]) -> pa.RecordBatch:
    """Maps the fields of a batch of rows."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name, rule in rules.items():
        if name == "value" and rule == EMPTY:
            columns["value"] = pc.fill_null(columns["value"], b"")
        elif rule == DROP:
            columns.pop(name, None)
        elif name in columns and rule in ("key", "tag"):
            columns[rule] = columns.pop(name).cast(pa.binary())
        elif name in columns and rule.startswith(HEADER):
            columns["headers"] = _as_header(columns.pop(name), rule.removeprefix(HEADER))
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _as_header(values: pa.Array, name: str) -> pa.Array:
    """Makes a list of one header for each value, and none for a null."""
    valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(valid)]).astype(np.int32)
    present = values.drop_null().cast(pa.binary())
    names = pa.repeat(pa.scalar(name), len(present))
    items = pa.StructArray.from_arrays([names, present], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends), items)
