"""What an append asks for and what it is answered: levels, stamps, acks.

acks=0         NOT_WAITED   queued; nothing is known of it
acks=1         WRITTEN      handed to the operating system: survives the process
acks="all"     DURABLE      fsynced: survives the machine
acks="archived"             in the object store, too
acks="topic"                as far as the topic's own settings say: the default
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from lamina.errors import InvalidRequest

NOT_WAITED, WRITTEN, DURABLE = 0, 1, 2
"""How far an append goes before it is answered: acks 0, 1 and all."""
ACKS: dict[object, int] = {
    0: NOT_WAITED,
    "0": NOT_WAITED,
    1: WRITTEN,
    "1": WRITTEN,
    "all": DURABLE,
    -1: DURABLE,
    "-1": DURABLE,
}
Acks: TypeAlias = Literal[0, 1, -1, "0", "1", "-1", "all", "archived", "topic"]
"""The `acks` that an append may ask for."""
GroupAcks: TypeAlias = Literal[1, -1, "1", "-1", "all"]
"""The `acks` that a change of a group may ask for: it is always answered."""
OF_TOPIC: Final = "topic"
"""The `acks` of an append that goes as far as its topic's settings say."""
UNTIL_ARCHIVED: Final = "archived"
"""The `acks` of an append that waits for the object store, too."""
_STRENGTH = {"none": 0, "written": 1, "fsynced": 2, "archived": 3}

ProducerId: TypeAlias = int
"""An idempotent producer's number: all 64 bits."""


@dataclass(slots=True)
class Ack:
    """Where an append's records are, and what they survive: `written` or `fsynced`.

    Not frozen, because freezing would double the cost of making one; only the writer changes it,
    before anybody is given it.
    """

    base_offset: int
    count: int
    durability: str


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Who appends and which of its records these are: a repeat gets the first answer."""

    producer_id: int
    epoch: int
    sequence: int

    def __post_init__(self) -> None:
        limits = {"producer_id": 1 << 64, "epoch": 1 << 32, "sequence": 1 << 63}
        for name, limit in limits.items():
            given = getattr(self, name)
            if type(given) is not int or not 0 <= given < limit:
                raise InvalidRequest(f"a producer's {name} is 0 to {limit - 1}, not {given!r}")


@dataclass(slots=True)
class Appended:
    """The answer to an append: one part for each partition that records went to.

    `durability` is the weakest of the parts: `none` (not waited for), `written`,
    `fsynced` or `archived`.
    """

    parts: dict[int, Ack]
    count: int

    @property
    def durability(self) -> str:
        """What all of the records survive."""
        return min((part.durability for part in self.parts.values()), key=_STRENGTH.__getitem__)

    @property
    def partition(self) -> int:
        """The one partition that took the records."""
        return self._only()[0]

    @property
    def base_offset(self) -> int:
        """The first record's offset, where one partition took them all."""
        return self._only()[1].base_offset

    def _only(self) -> tuple[int, Ack]:
        if len(self.parts) != 1:
            raise InvalidRequest(
                f"the records went to {len(self.parts)} partitions; look at `parts`"
            )
        return next(iter(self.parts.items()))


def acks_level(acks: object) -> int | None:
    """Reads an `acks` argument; None for what leaves it to the topic."""
    if acks == OF_TOPIC and type(acks) is str:
        return None
    level = ACKS.get(acks) if type(acks) in (int, str) else None
    if level is None:
        raise InvalidRequest(f"acks must be 0, 1, 'all' or 'archived', not {acks!r}")
    return level


def checked_acks(acks: object) -> Acks:
    """Checks what somebody typed or sent as `acks`; the type checker knows it then, too."""
    if not (acks == UNTIL_ARCHIVED and type(acks) is str):
        acks_level(acks)
    return cast("Acks", acks)


def stamp(name: str, value: object) -> ProducerStamp:
    """Checks a producer's stamp."""
    if not isinstance(value, ProducerStamp):
        raise InvalidRequest(f"{name} must be a ProducerStamp, not a {type(value).__name__}")
    return value
