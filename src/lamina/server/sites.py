"""Which web pages may ask a server: its own, where a browser speaks for somebody without a key.

A server without keys trusts whoever reaches loopback. A browser on that machine reaches it on
behalf of any page it shows, so what such a page sends is told by the headers that browsers add,
and refused. Programs send none of them.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from lamina.errors import NotAllowed
from lamina.server.arriving import host_of
from lamina.server.auth import is_loopback

_OWN = ("same-origin", "none")
"""What browsers say of a request of the page itself, and of one that a person typed."""


def refuse_foreign_name(request: Request) -> None:
    """Refuses a request to a name that is not loopback's; for a server without keys.

    A page can make a name of its own mean this machine; it cannot make the browser call it so.
    """
    host = host_of(request.headers.get("host", ""))
    if not is_loopback(host):
        raise NotAllowed(f"without keys the server answers on loopback only, not as {host!r}")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # no address at all: nobody's own
        return None


def refuse_foreign_site(request: Request) -> None:
    """Refuses what the page of another site may have sent."""
    origin = request.headers.get("origin")
    is_foreign = origin is not None and _netloc(origin) != request.headers.get("host")
    if is_foreign or request.headers.get("sec-fetch-site", _OWN[0]) not in _OWN:
        raise NotAllowed("the server does not answer pages of other sites; use a key, or a program")
