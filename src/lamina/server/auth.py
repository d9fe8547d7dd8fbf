"""Who may do what: API keys with scopes and a topic prefix.

A key is `lamina_<id>_<secret>`. The file keeps the id in clear and the SHA-256 of the whole key: a
secret of 256 random bits needs no slow hash. Scopes contain each other: admin may write, write may
read.

    {"version": 1, "keys": [{"id": "…", "sha256": "…", "scope": "write", "prefix": "orders.",
                             "produce_bytes": 1000000}]}

Rules.
1. A key is compared in constant time, also when its id is unknown.
2. Neither keys nor hashes are ever logged or part of an error.
3. A key that is the same in a file that was read again has the same `Caller`: whoever holds one
   learns by its identity that nothing has changed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from lamina.errors import CorruptData, InvalidRequest, NotAllowed
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles
from lamina.wire import values
from lamina.wire.operations import SCOPES, Scope

_KEY = re.compile(r"lamina_([0-9a-f]{16})_[0-9A-Za-z_-]{43}")
_NOBODY = hashlib.sha256(b"").hexdigest()
AS_SETTING = -2
"""A quota of a key that the file does not give: the server's setting holds."""


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of a key."""

    id: str
    sha256: str
    scope: str
    prefix: str = ""
    note: str = ""
    produce_bytes: int = AS_SETTING
    """Bytes that it may append per second: as the setting quota.produce.bytes says, or so many."""
    fetch_bytes: int = AS_SETTING

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise InvalidRequest(f"a scope is {', '.join(SCOPES)}, not {self.scope!r}")
        for name in ("produce_bytes", "fetch_bytes"):
            amount = getattr(self, name)
            if amount < AS_SETTING or amount == 0:
                raise InvalidRequest(f"{name} is 1 or more, -1 for any, not {amount}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many bytes a new key may append and fetch per second."""

    produce_bytes: int = AS_SETTING
    fetch_bytes: int = AS_SETTING


AS_SETTINGS = Quotas()


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose key was accepted, or anybody where no keys are asked for."""

    name: str
    scope: str = "admin"
    prefix: str = ""
    produce_bytes: int = AS_SETTING
    fetch_bytes: int = AS_SETTING
    sha256: str = field(default="", repr=False)

    def require_scope(self, scope: Scope, what: str) -> None:
        """Refuses what the key is not for, whatever its topic."""
        if SCOPES.index(scope) > SCOPES.index(self.scope):
            raise NotAllowed(f"{what} needs scope {scope}; key {self.name} has {self.scope}")

    def require(self, scope: Scope, topic: str | None, what: str) -> None:
        """Refuses what the key does not cover; a call on no topic needs a key without prefix."""
        self.require_scope(scope, what)
        if topic is None and self.prefix and scope != "read":
            raise NotAllowed(f"{what} is for all topics; key {self.name} is for {self.prefix!r}…")
        if topic is not None and not topic.startswith(self.prefix):
            raise NotAllowed(f"key {self.name} is for topics {self.prefix!r}…, not {topic!r}")


ANYBODY = Caller("anonymous")


class Keys:
    """The keys that a server knows; `before` are those that it knew until now."""

    def __init__(self, keys: Iterable[Key], before: Keys | None = None) -> None:
        known = before._callers if before is not None else {}
        self._callers: dict[str, Caller] = {}
        self._notes: dict[str, str] = {}
        for key in keys:
            self._notes[key.id] = key.note
            made = Caller(
                *(key.id, key.scope, key.prefix),
                produce_bytes=key.produce_bytes,
                fetch_bytes=key.fetch_bytes,
                sha256=key.sha256,
            )
            same = known.get(key.id)
            self._callers[key.id] = same if same is not None and same == made else made

    def __len__(self) -> int:
        return len(self._callers)

    def ids(self) -> frozenset[str]:
        """Returns the ids of all keys."""
        return frozenset(self._callers)

    def changed_ids(self, before: Keys) -> list[str]:
        """Returns the ids of keys that are there as before, but with other rights or quotas."""
        both = self.ids() & before.ids()
        return sorted(each for each in both if self._callers[each] is not before._callers[each])

    def renewed(self, caller: Caller) -> Caller:
        """Returns a caller as the keys are now; raises NotAllowed when its key was revoked."""
        now = self._callers.get(caller.name)
        if now is caller:
            return caller
        if now is None or not hmac.compare_digest(now.sha256, caller.sha256):
            raise NotAllowed(f"key {caller.name} was revoked")
        return now

    def known(self) -> list[tuple[Caller, str]]:
        """Returns whom each key stands for, and its note; a caller's hash is for no answer."""
        return [(caller, self._notes[name]) for name, caller in self._callers.items()]

    def caller(self, presented: str | None) -> Caller:
        """Returns whose key this is; raises NotAllowed when it is nobody's."""
        if not presented:
            raise NotAllowed("this server needs an API key")
        match = _KEY.fullmatch(presented)
        known = self._callers.get(match[1]) if match else None
        digest = hashlib.sha256(presented.encode(errors="replace")).hexdigest()
        equal = hmac.compare_digest(digest, known.sha256 if known else _NOBODY)
        if known is None or not equal:
            raise NotAllowed("the API key is not known here")
        return known


def bearer(header: str | None) -> str | None:
    """Returns the key of an `Authorization: Bearer …` header."""
    kind, _, key = (header or "").partition(" ")
    return key.strip() if kind.lower() == "bearer" and key.strip() else None


def basic_password(header: str | None) -> str | None:
    """Returns the password of an `Authorization: Basic …` header; the user's name says nothing."""
    kind, _, text = (header or "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        _, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return password or None


def load(path: str) -> list[Key]:
    """Reads a key file."""
    try:
        document = json.loads(LocalFiles().read(path))
        keys: list[Key] = values.from_plain(list[Key], document["keys"], "keys")
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no key file {path}; make a key first") from error
    except (ValueError, KeyError, TypeError, InvalidRequest) as error:
        raise CorruptData("not a key file", path=path, found=type(error).__name__) from error
    return keys


def create(
    path: str, *, scope: str, prefix: str = "", note: str = "", quotas: Quotas = AS_SETTINGS
) -> tuple[Key, str]:
    """Makes a key and adds it to a file; returns it with its text, which is kept nowhere."""
    identity = secrets.token_hex(8)
    text = f"lamina_{identity}_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    key = Key(identity, digest, scope, prefix, note, quotas.produce_bytes, quotas.fetch_bytes)
    known = load(path) if machine.exists(path) else []
    _save(path, [*known, key])
    return key, text


def delete(path: str, identity: str) -> None:
    """Takes a key out of a file."""
    known = load(path)
    if identity not in {key.id for key in known}:
        raise InvalidRequest(f"{path} has no key {identity}")
    _save(path, [key for key in known if key.id != identity])


def _save(path: str, keys: list[Key]) -> None:
    rows = [{name: v for name, v in asdict(key).items() if v != AS_SETTING} for key in keys]
    document: dict[str, Any] = {"version": 1, "keys": rows}
    whole = paths.absolute(path)
    LocalFiles().make_directory(paths.parent(whole))
    LocalFiles().replace(whole, (json.dumps(document, indent=2) + "\n").encode())


def is_loopback(host: str) -> bool:
    """Returns whether an address can only be reached from this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
