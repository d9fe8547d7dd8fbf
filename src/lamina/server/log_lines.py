"""The server's log: lines for people, or one JSON object per line for machines.

    2026-11-18 14:00:00,000 INFO lamina.server: serving data on grpc://…
    {"time": "2026-11-18T14:00:00.000Z", "level": "INFO", "logger": "lamina.server",
     "event": "serving", "message": "serving data on grpc://…", "data": "data"}

What happens to a server has an `event` and fields of its own (`told`); the message says the same
in words, so that nothing is lost in either format.

Rules.
1. No line for a call that was answered: what is counted is in the metrics.
2. What strangers can cause, they can cause often: refusals of one kind are logged a few times a
   minute, then counted, and the count is logged (`Refusals`).
3. No secret: keys and their hashes never get here, and a URL loses what is before its `@`.
4. A message is one line, also where it names what a stranger has chosen: a line break or an escape
   sequence in it is written out (`printable`), so that nobody else writes lines here.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from lamina.server.setting_table import ServerSettings

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LINES_PER_MINUTE = 5
WINDOW_S = 60.0
KINDS_MAX = 1000
"""How many kinds of refusals are told apart; what comes beyond is one kind."""
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_FIELDS = "lamina_fields"
_log = logging.getLogger("lamina.server")


def told(event: str, **fields: Any) -> dict[str, Any]:
    """Returns the `extra` of a log line: which event it is, and its fields."""
    return {_FIELDS: {"event": event, **fields}}


def printable(text: str) -> str:
    """Returns a text with everything written out that would end a line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class TextLines(logging.Formatter):
    """Makes a line for people, and lines of a traceback below it."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Returns the line."""
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, with the traceback if there is one."""
        return "\n".join(map(printable, super().format(record).split("\n")))


class JsonLines(logging.Formatter):
    """Makes one JSON object of a line, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object as one line."""
        millis = f"{record.msecs:03.0f}"[:3]
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{millis}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def formatter_of(settings: ServerSettings) -> logging.Formatter:
    """Returns what makes lines in the format that the settings ask for."""
    return JsonLines() if settings.log_format == "json" else TextLines()


class LogOutput:
    """The stream that the process logs to; its format and level can be changed while it runs."""

    def __init__(self, settings: ServerSettings, stream: TextIO | None = None) -> None:
        self._handler = logging.StreamHandler(stream or sys.stderr)
        self.apply(settings)
        logging.getLogger().addHandler(self._handler)

    def apply(self, settings: ServerSettings) -> None:
        """Takes on the format and the level of settings."""
        self._handler.setFormatter(formatter_of(settings))
        logging.getLogger().setLevel(settings.log_level.upper())

    def close(self) -> None:
        """Logs no more to the stream."""
        logging.getLogger().removeHandler(self._handler)


def without_secrets(value: Any) -> Any:
    """Returns a setting as it may be logged: a URL without a user and password."""
    return _USER.sub("***@", value) if isinstance(value, str) else value


def settings_of(settings: ServerSettings) -> dict[str, Any]:
    """Returns the settings that are not at their defaults, as they may be logged."""
    default = ServerSettings().as_dict()
    return {
        key: without_secrets(value)
        for key, value in settings.as_dict().items()
        if value != default[key]
    }


class Refusals:
    """Logs what was refused, each kind a few times a minute; what was left out is counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}
        self.strangers = 0
        """How many calls came without a key that is known here."""

    def note(self, kind: str, message: str, *arguments: Any, **fields: Any) -> None:
        """Logs a refusal of a kind, or counts it; `fields` are for machines."""
        now = self._clock()
        with self._lock:
            if kind not in self._seen and len(self._seen) >= KINDS_MAX:
                kind = "others"
            begun, count = self._seen.get(kind, (now, 0))
            left_out = max(0, count - LINES_PER_MINUTE)
            is_over = now - begun >= WINDOW_S
            self._seen[kind] = (now, 1) if is_over else (begun, count + 1)
            is_logged = is_over or count < LINES_PER_MINUTE
        if is_over and left_out:
            self._tell(kind, left_out)
        if is_logged:
            _log.warning(message, *arguments, extra=told("refused", kind=kind, **fields))

    def note_stranger(self, door: str, peer: str, error: Exception) -> None:
        """Counts and logs somebody who has no key that is known here; `peer` as the door has it."""
        host = peer.removeprefix("ipv4:").removeprefix("ipv6:")
        host = host.rpartition(":")[0] if door == "flight" and ":" in host else host
        with self._lock:
            self.strangers += 1
        kind = f"strangers from {host} ({door})"
        self.note(kind, "refused a call from %s: %s", host, error, door=door, host=host)

    def sweep(self) -> None:
        """Logs the counts of kinds whose minute is over; a server does this now and then."""
        now = self._clock()
        with self._lock:
            over = {k: n for k, (begun, n) in self._seen.items() if now - begun >= WINDOW_S}
            for kind in over:
                del self._seen[kind]
        for kind, count in over.items():
            if count > LINES_PER_MINUTE:
                self._tell(kind, count - LINES_PER_MINUTE)

    @staticmethod
    def _tell(kind: str, count: int) -> None:
        text = "refused %d more in a minute: %s"
        _log.warning(text, count, kind, extra=told("refused", kind=kind, left_out=count))
