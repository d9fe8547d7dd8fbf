"""What recovery did, as a value: kept in `meta/recovery.json`, shown by commands and pages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from lamina.api.portraits import Portrait, Shown, counted, table_portrait

Kind: TypeAlias = Literal[
    "cut", "rebuilt", "quarantined", "deletion finished", "gap", "clamped", "note"
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that recovery did to a file, and why. `kept_in` names a copy of what was cut."""

    kind: Kind
    path: str
    why: str
    first_byte: int | None = None
    end_byte: int | None = None
    kept_in: str | None = None


@dataclass(slots=True, repr=False)
class RecoveryReport(Shown):
    """Everything that one recovery did, in order."""

    events: list[Event] = field(default_factory=list)
    milliseconds: float = 0.0

    def add(
        self,
        kind: Kind,
        path: str,
        why: str,
        *,
        byte_range: tuple[int, int] | None = None,
        kept_in: str | None = None,
    ) -> None:
        """Notes an event."""
        first, end = byte_range or (None, None)
        self.events.append(Event(kind, path, why, first, end, kept_in))

    @property
    def is_notable(self) -> bool:
        """Whether anything was done but to cut off what nobody was told of."""
        return any(event.kind != "cut" or event.kept_in for event in self.events)

    def of(self, kind: Kind) -> list[Event]:
        """Returns the events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def _portrait(self) -> Portrait:
        events = list(self.events)
        what = counted(len(events), "event") if events else "nothing to mend"
        rows = ((each.kind, each.path, each.why, each.kept_in) for each in events)
        title = f"recovery: {what}, {self.milliseconds:.1f} ms"
        return table_portrait(title, ("what", "file", "why", "kept in"), rows, len(events))

    def encode(self) -> bytes:
        """Encodes the report as JSON, for people and programs."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()
