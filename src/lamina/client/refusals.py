"""Why a server could not be reached, in a sentence: gRPC's own texts name its internals.

Rule: a text that is not known here is passed on as it is, cut to one line.
"""

from __future__ import annotations

import re

_LENGTH = 300
_PREFIX = re.compile(r"Flight returned [a-z ]+ error, with message: ")
_FINAL: tuple[tuple[str, str], ...] = (
    ("Connection refused", "nothing listens there; is the server running?"),
    ("Domain name not found", "there is no such host"),
    ("hostname lookup error", "the name of the host cannot be resolved"),
    ("No such file or directory", "there is no such socket; is the server running?"),
    (
        "certificate verify failed",
        "its certificate is not trusted ({detail}); name the file of its authority with --ca,"
        " LAMINA_CA or tls_root",
    ),
    ("wrong version number", "it does not speak TLS; use grpc:// instead of grpc+tls://"),
    ("http1.x server", "that is an HTTP port; use the server's Flight port, 9300 by default"),
    ("empty address list", "the certificates to trust cannot be used"),
)
_HUNG_UP = "Socket closed"
_PASSING = (
    (
        _HUNG_UP,
        "it closed the connection; does it want TLS (grpc+tls://), or is that another port than the"
        " server's Flight port, 9300 by default?",
    ),
)
_DETAIL = re.compile(r"certificate verify failed: ([\w -]+)")


def is_final(text: str) -> bool:
    """Whether a connection failed for a reason that stays: nobody listens, or trusts, there."""
    return any(mark in text for mark, _ in _FINAL)


def hung_up(text: str) -> bool:
    """Whether a connection was made, and closed by the other side."""
    return _HUNG_UP in text


def cause(text: str) -> str:
    """Returns the reason in gRPC's text as one line that says what to do about it."""
    for mark, meaning in _FINAL + _PASSING:
        if mark in text:
            found = _DETAIL.search(text)
            return meaning.format(detail=found[1].strip() if found else mark)
    lines = _PREFIX.sub("", text).splitlines()
    return lines[0][:_LENGTH] if lines else "it failed without a reason"
