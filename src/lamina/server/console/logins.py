"""Who looks at the console: a key is presented once, a cookie stands for it from then on.

The key itself is kept nowhere: neither in the page, where a script could read it, nor here. The
cookie is HttpOnly and SameSite=Strict; the server knows only its SHA-256.

Rules.
1. A change needs more than the cookie: a header that no form and no other site can send, and an
   origin that is this server.
2. Where no keys are asked for, only requests to a loopback name are answered: a name that somebody
   else's DNS points at this machine is not one.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import Request

from lamina.errors import NotAllowed
from lamina.server.auth import Caller
from lamina.server.sites import refuse_foreign_site

COOKIE = "lamina_console"
MARK = "x-lamina-console"
"""The header of every change: a cross-site request with it would need our permission first."""
IDLE_S = 8 * 3600
SESSIONS_MAX = 256


class LoggedOut(NotAllowed):
    """Whoever looks has to say who they are."""


class Sessions:
    """The sessions that are open; the one that was not used for longest goes first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()

    def open(self, caller: Caller) -> str:
        """Begins a session; returns what its cookie holds."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._known[_digest(token)] = caller, self._clock()
            while len(self._known) > SESSIONS_MAX:
                self._known.popitem(last=False)
        return token

    def caller(self, token: str | None) -> Caller:
        """Returns whose session it is; raises LoggedOut for none, and for one that is over."""
        digest = _digest(token or "")
        now = self._clock()
        with self._lock:
            caller, used = self._known.get(digest, (None, 0.0))
            if caller is None or now - used > IDLE_S:
                self._known.pop(digest, None)
                raise LoggedOut("this server needs an API key; log in")
            self._known[digest] = caller, now
            self._known.move_to_end(digest)
            return caller

    def close(self, token: str | None) -> None:
        """Ends a session."""
        with self._lock:
            self._known.pop(_digest(token or ""), None)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def refuse_foreign_change(request: Request) -> None:
    """Refuses a change that another site may have caused."""
    if request.headers.get(MARK) != "1":
        raise NotAllowed(f"a change needs the header {MARK}")
    refuse_foreign_site(request)
