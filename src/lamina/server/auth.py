"""Who may do what: API keys with scopes and a topic prefix.

A key is `lamina_<id>_<secret>`. The file keeps the id in clear and the SHA-256 of the whole key: a
secret of 256 random bits needs no slow hash. Scopes contain each other: admin may write, write may
read.

    {"version": 1, "keys": [{"id": "…", "sha256": "…", "scope": "write", "prefix": "orders."}]}

Rules.
1. A key is compared in constant time, also when its id is unknown.
2. Neither keys nor hashes are ever logged or part of an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lamina.errors import CorruptData, InvalidRequest, NotAllowed
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles
from lamina.wire import values
from lamina.wire.operations import SCOPES, Scope

_KEY = re.compile(r"lamina_([0-9a-f]{16})_[0-9A-Za-z_-]{43}")
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of a key."""

    id: str
    sha256: str
    scope: str
    prefix: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise InvalidRequest(f"a scope is {', '.join(SCOPES)}, not {self.scope!r}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose key was accepted, or anybody where no keys are asked for."""

    name: str
    scope: str = "admin"
    prefix: str = ""

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
    """The keys that a server knows."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.id: key for key in keys}

    def caller(self, presented: str | None) -> Caller:
        """Returns whose key this is; raises NotAllowed when it is nobody's."""
        if not presented:
            raise NotAllowed("this server needs an API key")
        match = _KEY.fullmatch(presented)
        known = self._keys.get(match[1]) if match else None
        digest = hashlib.sha256(presented.encode(errors="replace")).hexdigest()
        equal = hmac.compare_digest(digest, known.sha256 if known else _NOBODY)
        if known is None or not equal:
            raise NotAllowed("the API key is not known here")
        return Caller(known.id, known.scope, known.prefix)


def bearer(header: str | None) -> str | None:
    """Returns the key of an `Authorization: Bearer …` header."""
    kind, _, key = (header or "").partition(" ")
    return key.strip() if kind.lower() == "bearer" and key.strip() else None


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


def create(path: str, *, scope: str, prefix: str = "", note: str = "") -> tuple[Key, str]:
    """Makes a key and adds it to a file; returns it with its text, which is kept nowhere."""
    identity = secrets.token_hex(8)
    text = f"lamina_{identity}_{secrets.token_urlsafe(32)}"
    key = Key(identity, hashlib.sha256(text.encode()).hexdigest(), scope, prefix, note)
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
    document: dict[str, Any] = {"version": 1, "keys": [asdict(key) for key in keys]}
    whole = paths.absolute(path)
    LocalFiles().make_directory(paths.parent(whole))
    LocalFiles().replace(whole, (json.dumps(document, indent=2) + "\n").encode())


def is_loopback(host: str) -> bool:
    """Returns whether an address can only be reached from this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
