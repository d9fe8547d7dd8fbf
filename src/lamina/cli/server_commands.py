"""`lamina server …`: a server that runs is looked at and told to read its files again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from typing import Annotated, Any

import typer

from lamina.cli.target import Json

app = typer.Typer(
    help="A server that runs: whether it is ready, and a reload of its files.",
    no_args_is_help=True,
    epilog="Example: lamina server reload --url http://127.0.0.1:9301",
)
PATIENCE_S = 30.0

Url = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="LAMINA_HTTP", help="The server's HTTP door: http://host:9301, or https."
    ),
]
Authority = Annotated[
    str | None,
    typer.Option("--ca", envvar="LAMINA_CA", help="A PEM file with the authority to trust."),
]
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
DEFAULT_URL = "http://127.0.0.1:9301"


@app.command(epilog="Example: lamina server reload --data data")
def reload(
    *,
    url: Url = None,
    ca: Authority = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Signal the server of this directory, on this machine."),
    ] = None,
    pid: Annotated[int | None, typer.Option("--pid", help="Signal this process.")] = None,
    as_json: Json = False,
) -> None:
    """Has a server read its keys, certificates and settings again, all of them or none.

    By --url the answer says what has changed and what needs a restart; it needs a key of scope
    admin where there are keys. By --data or --pid the server gets SIGHUP, and its log says it.
    """
    from lamina.cli.output import emit, say
    from lamina.errors import InvalidRequest

    if sum(each is not None for each in (url, data, pid)) > 1:
        raise InvalidRequest("a server is named once: by --url, by --data or by --pid")
    if pid is not None or data is not None:
        number = pid if pid is not None else _server_of(str(data))
        _signal(number)
        say(f"process {number} was told to reload; its log says what came of it")
        return
    found = asked(url or DEFAULT_URL, "/v1/reload", ca, body=b"{}")[1]["result"]
    if as_json:
        emit([found], as_json=True)
        return
    lines = [f"{key} is now {value}" for key, value in found["changed"].items()]
    lines += found["needs_restart"]
    for what in ("added", "changed", "revoked"):
        lines += [f"key {each} was {what}" for each in found[f"keys_{what}"]]
    if found["certificate"] == "renewed":
        lines.append("the certificate is new")
    for line in lines or ["nothing has changed"]:
        say(line)


@app.command(epilog="Example: lamina server check --url http://127.0.0.1:9301")
def check(*, url: Url = None, ca: Authority = None, as_json: Json = False) -> None:
    """Asks whether a server is ready and well: exits 0 if it is, 1 if not, 3 if nobody answers."""
    from lamina.cli.output import emit

    base = url or DEFAULT_URL
    ready, health = (asked(base, path, ca) for path in ("/ready", "/health"))
    row = {"ready": ready[1]["ready"], "status": health[1]["status"]}
    row |= {"problems": health[1]["problems"], "warnings": health[1]["warnings"]}
    if not as_json:
        row["ready"] = "yes" if row["ready"] else "no"
        row |= {name: "; ".join(row[name]) or "none" for name in ("problems", "warnings")}
    emit([row], as_json=as_json)
    raise typer.Exit(0 if ready[0] == health[0] == 200 else 1)


def asked(base: str, path: str, ca: str | None, body: bytes | None = None) -> tuple[int, Any]:
    """Asks a server's HTTP door; returns the status and what it said, raises what it refused."""
    import ssl
    import urllib.error
    import urllib.request

    from lamina.errors import InvalidRequest, Unavailable
    from lamina.wire import failures

    if not base.startswith(("http://", "https://")):
        raise InvalidRequest(f"the HTTP door of a server is http://host:port, not {base!r}")
    headers = {"content-type": "application/json"}
    key = os.environ.get("LAMINA_API_KEY")
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(base.rstrip("/") + path, data=body, headers=headers)  # noqa: S310
    try:
        trusted = ssl.create_default_context(cafile=ca) if base.startswith("https") else None
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusted) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        found = _object(refusal.read())
        if "error" in found:
            raise failures.from_object(found) from None
        return refusal.code, found
    except (OSError, ValueError) as error:
        reason = _ERRNO.sub("", str(getattr(error, "reason", error)))
        raise Unavailable(f"{base} does not answer: {reason}") from error


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _server_of(data: str) -> int:
    """Returns the process that has a directory open."""
    from lamina.errors import Unavailable
    from lamina.storage import locks, paths

    found = locks.holder_of(paths.join(data, paths.LOCK))
    if found is None:
        raise Unavailable(f"no server has {data} open")
    return found


def _signal(number: int) -> None:
    from lamina.errors import InvalidRequest, Unavailable

    try:
        if not (_holds_a_lock(number) and _catches_hangup(number)):  # the signal would end it
            raise InvalidRequest(f"process {number} is not a server that reloads on SIGHUP")
        os.kill(number, signal.SIGHUP)
    except (ProcessLookupError, FileNotFoundError) as error:
        raise Unavailable(f"there is no process {number}") from error
    except PermissionError as error:
        raise InvalidRequest(
            f"process {number} belongs to somebody else: signal it as its owner, or use --url"
        ) from error


def _holds_a_lock(number: int) -> bool:
    """Whether a process has the lock file of a data directory open, as whoever writes one has."""
    from lamina.storage import paths

    for each in os.listdir(f"/proc/{number}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if os.readlink(f"/proc/{number}/fd/{each}").endswith(paths.LOCK):
                return True
    return False


def _catches_hangup(number: int) -> bool:
    """Whether a process has a handler for SIGHUP, as a server has and a program may."""
    with open(f"/proc/{number}/status", encoding="ascii", errors="replace") as file:
        masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (signal.SIGHUP - 1) & 1)
