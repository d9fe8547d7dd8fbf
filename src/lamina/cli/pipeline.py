"""`lamina pipeline <job>`: bulk work on topics, each one Spark job with one commit."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="pipeline",
    help="Bulk work on topics, run by Spark: on this machine, or on any cluster by --master.",
    no_args_is_help=True,
    epilog="Example: lamina pipeline export orders lake/orders --data data",
)
