"""Where a server's settings come from: a file, then the environment, then flags; later ones win.

lamina.toml      [server] host = "0.0.0.0" "flight.port" = 9300
environment      LAMINA_FLIGHT_PORT=9300          (the key in capitals, dots as underscores)
flags            --set flight.port=9300
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.errors import InvalidRequest
from lamina.server.setting_table import ServerSettings
from lamina.storage import paths
from lamina.storage.files import LocalFiles

PREFIX = "LAMINA_"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and for each key that is not at its default, who set it."""

    settings: ServerSettings
    sources: dict[str, str]


def variable_of(key: str) -> str:
    """Returns the environment variable of a key."""
    return PREFIX + key.upper().replace(".", "_")


def resolve(path: str | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Resolved:
    """Gathers the settings; an unknown key in the file or a flag is an error."""
    settings = ServerSettings()
    sources: dict[str, str] = {}
    known = [row["key"] for row in ServerSettings.explained()]
    from_environment = {
        key: environment[variable_of(key)] for key in known if variable_of(key) in environment
    }
    layers: list[tuple[str, Mapping[str, Any]]] = [
        (f"file {path}", {} if path is None else _read(path)),
        ("environment", from_environment),
        ("flag", flags),
    ]
    for source, given in layers:
        settings = settings.updated(given)
        sources |= dict.fromkeys(given, source)
    return Resolved(settings, sources)


def _read(path: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(LocalFiles().read(paths.absolute(path)).decode())
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no settings file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from error
    strange = sorted(set(document) - {"server"})
    if strange:
        raise InvalidRequest(f"{path} has a table {strange[0]!r}; only [server] is known")
    found: dict[str, Any] = _flat(document.get("server", {}), "")
    return found


def _flat(table: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Joins nested tables by dots, so that `flight.port = 1` may be written bare."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
