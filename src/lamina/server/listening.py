"""A port that a server cannot listen on, in one sentence for all doors."""

from __future__ import annotations

import errno
import socket

from lamina.errors import Unavailable


def refused(setting: str, host: str, port: int, error: Exception) -> Unavailable:
    """Returns the error of a door that cannot listen; names its setting.

    gRPC does not say why it failed; so the address is tried once more by hand.
    """
    why = _plain(error) if isinstance(error, OSError) else _reason(host, port)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    none = ", or -1 for none" if setting == "kafka.port" else ""
    return Unavailable(f"cannot listen on {shown}: {why}; choose another {setting}{none}")


def _reason(host: str, port: int) -> str:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return _plain(error)
    return "the server did not start"


def _plain(error: OSError) -> str:
    return "the address is in use" if error.errno == errno.EADDRINUSE else str(error)
