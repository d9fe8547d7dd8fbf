"""Spark over a log: a ready-made session, a source, a sink, and bulk jobs.

Needs `pip install 'lamina[spark]'`.

    spark.read.format("lamina")          source ─▶ batch  ─▶ plan ─▶ pieces ─▶ rows
    lamina.spark.read(spark, …)          filtered_read: a filter becomes options of the same
    spark.readStream.format("lamina")    source ─▶ stream ─▶ plan ─▶ pieces ─▶ rows
    df.write.format("lamina")            sink ─▶ commit: each transaction once
    lamina pipeline JOB                  jobs

`source` and `sink` are what Spark calls. `options` reads and checks what users set, `columns` are
the columns of the DataFrame; of a typed topic, `typed_columns` has their types and
`typed_projection` decodes values into them. `filtered_read` narrows a read by what its filter says,
as `filters` understands it. `plan` turns options into tasks: ranges of offsets, cut by bytes,
packed. `logs` has what can be planned over (a directory, an archive, a server), `pieces` what
executors read. `stream` has the offsets of micro-batches, `admission` decides how much of the new
records a batch takes, `query_positions` publishes where a query stands, so that lag and retention
can see it. `gaps` decides about records that a query does not get. `access` opens an object store
in another process, with credentials that are never printed. `spark_session` starts Spark,
`worker_daemon` forks its Python workers.

Rules.
1. Importing this package costs nothing: every Python worker of Spark does it before anything else.
2. The executors read the log themselves; no row passes through a broker on its way into Spark.
3. A batch query is a snapshot: its ranges are fixed when it is planned, and a retried task reads
   the same records. Filters are not pushed down, because Spark would cache the pushed plan.
4. A record that a query does not get has a recorded reason, and `failOnDataLoss` decides about it.
5. A transaction of the sink is stored once, whatever is killed and however late it is finished.

Where to look.
- how a range is cut into tasks: `plan.plan`; where a segment may be cut: `pieces` of each log in
  `logs`
- which offsets are in Spark's checkpoint: `Offsets` in `stream`
- what makes a write happen exactly once: `commit.transaction`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamina.spark.batch import explain
    from lamina.spark.commit.handover import publishing
    from lamina.spark.filtered_read import read
    from lamina.spark.source import LaminaSource
    from lamina.spark.spark_session import session

__all__ = ["LaminaSource", "explain", "publishing", "read", "session"]

_LAZY = {
    "LaminaSource": "lamina.spark.source",
    "explain": "lamina.spark.batch",
    "publishing": "lamina.spark.commit.handover",
    "read": "lamina.spark.filtered_read",
    "session": "lamina.spark.spark_session",
}


def __getattr__(name: str) -> object:
    """Imports each name when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'lamina.spark' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
