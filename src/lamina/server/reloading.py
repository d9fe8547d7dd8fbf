"""Keys, certificates and settings that are read again while the server runs.

    read everything ─▶ check everything ─▶ only then put it in force, in steps that cannot fail

Rules.
1. All or nothing: what cannot be read or is wrong leaves everything as it was, and is reported.
2. A setting that only a start can change keeps its value, and the report says so, each time.
3. What a report says of keys are their ids, and of settings what `log_lines` lets out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lamina.errors import InvalidRequest
from lamina.server.auth import Keys
from lamina.server.log_lines import without_secrets
from lamina.server.setting_table import ServerSettings

NEEDS_RESTART = frozenset(
    (
        "host",
        "flight.port",
        "http.port",
        "kafka.port",
        "kafka.advertised",
        "sockets",
        "archive",
        "cluster.name",
        "cluster.url",
        "cluster.ttl.ms",
        "tail.ms",
        "max.connections",
        "open.files.max",
        "traces",
    )
)
"""Sockets, the store's own files, and what is shared out when the server starts."""
SWITCHES = ("keys.file", "tls.certificate", "tls.key")
"""May name other files at any time; to begin or to end with them needs a start."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has changed."""

    changed: dict[str, Any] = field(default_factory=dict)
    """Settings with their new values."""
    needs_restart: list[str] = field(default_factory=list)
    """Sentences, one per setting that stays as it is until the next start."""
    keys_added: list[str] = field(default_factory=list)
    keys_changed: list[str] = field(default_factory=list)
    keys_revoked: list[str] = field(default_factory=list)
    certificate: str = "none"
    """none, unchanged or renewed: for all three doors."""

    def sentence(self) -> str:
        """Returns it as one line."""
        parts = [f"{key}={value}" for key, value in self.changed.items()]
        parts += self.needs_restart
        for what, ids in (
            ("added", self.keys_added),
            ("changed", self.keys_changed),
            ("revoked", self.keys_revoked),
        ):
            parts += [f"keys {what}: {', '.join(ids)}"] if ids else []
        if self.certificate == "renewed":
            parts.append("the certificate is new")
        return "; ".join(parts) or "nothing has changed"


def refuse_reload() -> Reloaded:
    """Answers where no service stands behind the doors."""
    raise InvalidRequest("this server reads nothing again")


def in_force(before: ServerSettings, wanted: ServerSettings) -> tuple[ServerSettings, list[str]]:
    """Returns the settings that may take effect now, and a sentence for each that may not."""
    kept, sentences = {}, []
    for item in fields(before):
        key = item.metadata["key"]
        old, new = getattr(before, item.name), getattr(wanted, item.name)
        is_switch = key in SWITCHES and bool(old) != bool(new)
        if old != new and (key in NEEDS_RESTART or is_switch):
            kept[item.name] = old
            sentences.append(f"{key} changed: needs restart")
    return replace(wanted, **kept), sentences


def changes(before: ServerSettings, after: ServerSettings) -> dict[str, Any]:
    """Returns the settings that differ, with their new values as they may be told."""
    old = before.as_dict()
    return {
        key: without_secrets(value) for key, value in after.as_dict().items() if value != old[key]
    }


def key_changes(before: Keys | None, after: Keys | None) -> dict[str, list[str]]:
    """Returns the ids of keys that came, changed and went."""
    if before is None or after is None:
        return {}
    return {
        "keys_added": _sorted(after.ids() - before.ids()),
        "keys_changed": after.changed_ids(before),
        "keys_revoked": _sorted(before.ids() - after.ids()),
    }


def _sorted(ids: Iterable[str]) -> list[str]:
    return sorted(ids)
