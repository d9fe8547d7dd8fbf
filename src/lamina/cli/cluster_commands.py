"""`lamina cluster …`: who holds a cluster, and having another server take it.

    status    each server that is named, or what the archive alone says
    promote   the holder lets go: it answers what it has begun, ships everything, and releases the
              lease; then the server that is promoted takes it, at once

By force nobody is asked. The holder is fenced, and what it has not shipped yet is lost to the
cluster: for a holder that is gone, when the ttl is too long to wait for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.server_commands import DEFAULT_URL, Authority, asked
from lamina.cli.target import Json

if TYPE_CHECKING:
    from lamina.formats.documents.lease_file import Lease

app = typer.Typer(
    help="Several servers and one archive: who holds it, and who takes over.",
    no_args_is_help=True,
    epilog="Example: lamina cluster status --url http://a:9301,http://b:9301",
)
PATIENCE_S = 60.0
PAUSE_S = 0.1
SHOWN = (
    *("server", "role", "epoch", "holder", "lease_left_ms", "tail_age_ms"),
    *("unshipped_records", "replica_lag_ms", "takeovers", "problems"),
)

Urls = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="LAMINA_HTTP",
        help="HTTP doors of servers, with commas between them: http://a:9301,http://b:9301.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--url", envvar="LAMINA_HTTP", help="The HTTP door of the server to promote."),
]
Archive = Annotated[
    str | None,
    typer.Option("--archive", help="The cluster's archive: ask it, and not a server."),
]


@app.command(epilog="Example: lamina cluster status --archive s3://bucket/prefix")
def status(
    *, url: Urls = None, ca: Authority = None, archive: Archive = None, as_json: Json = False
) -> None:
    """Shows who holds a cluster; exits 1 if a server does not answer, or nobody is the holder."""
    from lamina.cli.output import emit

    if archive is not None:
        rows = [_of_archive(archive)]
        is_well = bool(rows[0]["holder"])
    else:
        rows = [_of_server(each, ca) for each in (url or DEFAULT_URL).split(",")]
        holders = {row["holder"] for row in rows}
        is_well = len(holders) == 1 and "" not in holders
    if not as_json:
        rows = [{name: row[name] for name in SHOWN if name in row} for row in rows]
    emit(rows, as_json=as_json)
    raise typer.Exit(0 if is_well else 1)


def _of_server(url: str, ca: str | None) -> dict[str, Any]:
    from lamina.errors import Unavailable

    try:
        found = asked(url, "/health", ca)[1]
    except Unavailable as error:
        return {"server": url, "role": "unreachable", "holder": "", "problems": [str(error)]}
    return {"server": url, **_cluster_of(url, found), "problems": found["problems"]}


def _cluster_of(url: str, health: dict[str, Any]) -> dict[str, Any]:
    from lamina.errors import InvalidRequest

    found: dict[str, Any] = health.get("cluster", {})
    if "epoch" not in found:
        raise InvalidRequest(
            f"{url} is in no cluster, or the key is only for some topics: start servers with"
            " --cluster NAME, and ask with a key of all topics"
        )
    return found


def _of_archive(archive: str) -> dict[str, Any]:
    """Tells what the lease and the windows say; whether the holder answers, only it can say."""
    from lamina.archive.open_archive import open_archive
    from lamina.cluster.steps import run
    from lamina.cluster.tails import boundary_of
    from lamina.storage import paths

    objects = open_archive(archive)
    assert objects is not None, "an archive was named"
    lease = _lease_of(archive)
    boundary, _ = run(objects, boundary_of())
    keys = (paths.tail_seq(info.key) for info in objects.list(paths.TAILS))
    slots = [seq for seq in keys if seq is not None and seq >= boundary.first_seq]
    return {
        "server": archive,
        "epoch": lease.epoch,
        "holder": "" if lease.is_released else lease.url,
        "ttl_ms": lease.ttl_ms,
        "is_released": lease.is_released,
        "first_window": boundary.first_seq,
        "windows": len(slots),
        "last_window": max(slots, default=boundary.first_seq - 1),
    }


def _lease_of(archive: str) -> Lease:
    from lamina.archive.open_archive import open_archive
    from lamina.cluster.lease import Watch
    from lamina.cluster.steps import run
    from lamina.errors import InvalidRequest

    objects, watch = open_archive(archive), Watch()
    assert objects is not None, "an archive was named"
    run(objects, watch.look(lambda: 0))
    if watch.lease is None:
        raise InvalidRequest(f"{archive} has no lease: no server has held a cluster there")
    return watch.lease


@app.command(epilog="Example: lamina cluster promote --url http://b:9301")
def promote(
    *,
    url: Url = None,
    ca: Authority = None,
    archive: Archive = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Ask no holder: what it has not shipped is lost."),
    ] = False,
) -> None:
    """Has a server take the cluster; returns when it holds it.

    With --archive alone the holder lets go, and whichever server stands by takes over.
    """
    from lamina.cli.output import say
    from lamina.errors import InvalidRequest, NotPrimary

    if archive is not None and url is None:
        if force:
            raise InvalidRequest("--force needs the server that is to take the cluster: --url")
        lease = _lease_of(archive)
        if not lease.is_released:
            _hand_over(NotPrimary("", lease.url), ca)
        say(f"epoch {lease.epoch} has ended: a server that stands by takes over")
        return
    base = url or DEFAULT_URL
    about = _cluster_of(base, asked(base, "/health", ca)[1])
    if about["role"] == "holder":
        say(f"{base} holds the cluster in epoch {about['epoch']}")
        return
    if about["holder"] and not force:
        _hand_over(NotPrimary("", about["holder"]), ca)
    asked(base, "/v1/cluster/promote", ca, b'{"force": true}' if force else b"{}")
    say(f"{base} holds the cluster in epoch {_until_holder(base, ca)}")


def _hand_over(holder: Any, ca: str | None) -> None:
    from lamina.errors import Unavailable

    address = holder.address("https", "http")
    if address is None:
        raise Unavailable(f"the holder, {holder.holder!r}, has no HTTP door to be asked at")
    try:
        asked(address, "/v1/cluster/handover", ca, b"{}")
    except Unavailable as error:
        raise Unavailable(f"{error}; if the holder is gone, --force takes the cluster") from error


def _until_holder(url: str, ca: str | None) -> int:
    from lamina.errors import Unavailable

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        about = _cluster_of(url, asked(url, "/health", ca)[1])
        if about["role"] == "holder":
            return int(about["epoch"])
        time.sleep(PAUSE_S)
    raise Unavailable(f"{url} does not hold the cluster yet; `lamina cluster status` says who does")
