"""Which certificates a client trusts: those of a file, the environment's, or else the system's."""

from __future__ import annotations

from pathlib import Path

from lamina.errors import InvalidRequest

VARIABLE = "LAMINA_CA"
"""The environment variable that names a PEM file, for servers with a private authority."""
_MARK = b"-----BEGIN CERTIFICATE-----"


def certificates(path: str) -> bytes:
    """Reads a file of PEM certificates; raises InvalidRequest if it holds none."""
    try:
        found = Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"the certificates in {path} cannot be read: {error.strerror}"
        ) from error
    if _MARK not in found:
        raise InvalidRequest(f"{path} holds no PEM certificate")
    return found
