"""The cross product as a table: who is in it, who is not and why, and how the page shows it."""

from __future__ import annotations

from lamina_torture.cross.axes import DAMAGES, FORMATS, TIERS, Cell, impossible
from lamina_torture.cross.promise import RULES
from lamina_torture.cross.users import SPARK_USERS, USERS, User, unmet

NOT_USERS: dict[str, str] = {
    "Store.write_ahead_log": "hands out the engine itself, for jobs; it is used by every wal cell",
    "ReplicaStore.start": "polls in a thread; tests/store/test_replica.py",
    "RemoteStore.trim": "the same operation as Store.trim, which is a user; the door adds nothing",
    "RemoteStore.add_partitions": "the same operation as Store.add_partitions, which is a user",
    "RemoteStore.delete_records": "the same operation as Store.delete_records, which is a user",
    "RemoteStore.delete": "the same operation as Store.delete, which is a user",
    "RemoteStore.delete_topic": "the same operation as Store.delete_topic, which is a user",
    "RemoteStore.delete_group": "the same operation as Store.delete_group, which is a user",
    "lamina config": "prints settings; opens no directory",
    "lamina torture": "this harness",
    "lamina bench": "measures a topic of its own",
    "lamina warm": "compiles kernels in a store of its own",
    "lamina demo": "makes a directory of its own",
    "lamina key create": "keys of a server, no records",
    "lamina key list": "keys of a server, no records",
    "lamina key delete": "keys of a server, no records",
    "lamina pipeline table": "reads by the source, as the user `spark-read` does",
    "lamina pipeline ingest": "reads files of others and appends, as the user `append` does",
    "GET /console/static/{path:path}": "files of the page itself",
    "POST /v1/topics/{topic}/records": "appends, as the user `append` does",
    "POST /console/session": "logs in; no records",
    "DELETE /console/session": "logs out; no records",
    "action trim": "the same operation as Store.trim, which is a user",
    "action delete_by_tag": "the same operation as Store.delete, which is a user",
    "action verify": "starts `lamina pipeline verify`, which is a user",
    "action cancel": "stops a job; no records",
    "action delete_topic": "the same operation as Store.delete_topic, which is a user",
    "action produce": "appends, as the user `append` does",
    "GET /console/export": "fetches by pages, as the user `http-fetch` does",
    "GET /live": "says that the process answers; no records",
    "POST /v1/reload": "reads keys and certificates again; no records",
    "POST /v1/cluster/promote": "has it take its cluster; tests/cluster/test_servers.py",
    "POST /v1/cluster/handover": "has it let go of its cluster; tests/cluster/test_servers.py",
    "lamina cluster promote": "asks servers for the two routes of a cluster",
    "lamina cluster status": "asks for `GET /health`, or reads a lease",
    "lamina server check": "asks for `GET /ready` and `GET /health`, as `http-pages` does",
    "lamina server reload": "asks a server for `POST /v1/reload`",
}
"""What of the product is no user of its own, and why."""
NOT_USERS |= {
    f"{kind}.gone_from": "counts for the pipeline jobs, which are users"
    for kind in ("Store", "ReadOnlyStore", "ArchiveStore", "ReplicaStore")
}
NOT_USERS |= {
    f"{kind}.{name}": why
    for name, why in {
        "read": "reads by `scan`, which is a user, and decodes what that gives as Store.read does",
        "schema": "asks for what Store.schema does, which is a user",
        "schemas": "asks for what Store.schemas does, which is a user",
    }.items()
    for kind in ("ArchiveStore", "ReplicaStore", "RemoteStore")
}
NOT_USERS |= {
    f"{kind}.set_schema": "writes a topic's schemas.json, no records"
    for kind in ("Store", "RemoteStore")
}
NOT_USERS |= {
    f"{kind}.scan_from": "`scan` by the name that the log's document gives it"
    for kind in ("Store", "ReadOnlyStore", "ArchiveStore", "ReplicaStore", "RemoteStore")
}
NOT_USERS |= {
    f"RemoteStore.{name}": f"the same operation as Store.{name}, which is a user"
    for name in ("append_batch", "create_router", "alter_router", "delete_router")
}
NOT_USERS |= {
    f"{kind}.{name}": "who shares a topic's partitions: kept in memory, no file"
    for kind in ("Store", "RemoteStore")
    for name in ("join_group", "sync_group", "heartbeat", "leave_group")
}
NOT_USERS |= {
    f"RemoteStore.{name}": f"the same operation as Store.{name}, which is a user"
    for name in ("commit_offsets", "committed_offsets", "describe_members")
}
NOT_USERS |= {
    f"RemoteGroup.{name}": f"the same operation as Group.{name}, which is a user"
    for name in ("extend", "release", "reject", "commit", "committed", "lag", "describe")
}
NOT_USERS |= {
    f"Consumer.{name}": "says what `consume`, which is a user, reads; touches no file"
    for name in ("assign", "assignment", "unsubscribe", "seek", "pause", "resume")
}
NOT_USERS |= dict.fromkeys(
    ("Consumer.poll", "Consumer.consume_batch"), "`consume`, which is a user, in another shape"
)
NOT_USERS |= {
    f"Producer.{name}": "hands records to the store's own append, which is a user"
    for name in ("produce", "produce_batch", "poll", "flush", "close")
}
NOT_USERS |= {
    f"kafka {name}": why
    for why, names in {
        "tells of the server, of keys or of members: touches no file": (
            "ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster",
            "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup",
            "ShareGroupHeartbeat", "ShareGroupDescribe",
        ),
        "transactions are held by the rows F1/transactions and F4/transactions": (
            "AddOffsetsToTxn", "AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit",
        ),
        "asks for what the user `describe` asks for": (
            "Metadata", "DescribeConfigs", "ListGroups", "DescribeGroups", "OffsetForLeaderEpoch",
        ),
        "the store's own operation, of which an embedded user does the same": (
            "Produce", "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs",
            "IncrementalAlterConfigs", "DeleteRecords", "InitProducerId", "DeleteGroups",
            "OffsetCommit", "OffsetFetch", "OffsetDelete", "ShareFetch", "ShareAcknowledge",
            "AlterShareGroupOffsets", "DeleteShareGroupOffsets", "DescribeShareGroupOffsets",
        ),
    }.items()
    for name in names
}  # fmt: skip


NOT_USERS |= {
    "lamina.open": "every user in this process begins with it",
    "lamina.connect": "every user of Flight begins with it",
    "lamina.dataset": "the table that `lamina sql`, which is a user, queries",
    "lamina.polars.scan": "the same table as a lazy frame",
}

_REGISTRY = ("subjects", "schemas", "config", "mode", "compatibility", "contexts", "associations")
NOT_USERS |= {
    f"{verb} {path}": "the schema registry's: subjects are kept as records, which `scan` reads"
    for verb in ("GET", "POST", "PUT", "DELETE")
    for path in (
        "/v1/metadata/id",
        *(f"/{head}{rest}" for head in _REGISTRY for rest in ("", "/{rest:path}")),
    )
}

NOT_LAID_OUT: dict[str, str] = {
    "boundary of tails": "of a cluster",
    "lease of a cluster": "of a cluster",
    "tail": "of a cluster",
    "proof of an object store": "made by `lamina doctor --archive`; tests/archive/test_proof.py",
    "tombstone": "there only while a segment goes; the row F7/names",
}
"""Kinds of files that the directories of cells do not have, and what meets their damage instead."""


def every_user() -> dict[str, User]:
    """Returns all users by name: those in this process and those on Spark."""
    return {**USERS, **SPARK_USERS}


def cells(format_name: str, users: dict[str, User]) -> list[Cell]:
    """Returns the cells of a format that can be."""
    found = [
        Cell(format_name, tier, damage, name)
        for tier in TIERS
        for damage in DAMAGES
        for name in users
    ]
    return [
        cell for cell in found if impossible(cell) is None and unmet(users[cell.user], cell) is None
    ]


def covered() -> set[str]:
    """Returns all that a user exercises, or that is named with a reason why not."""
    return {name for user in every_user().values() for name in user.covers} | set(NOT_USERS)


def summary() -> list[str]:
    """The axes and rules as lines for docs/reliability.md."""
    lines = ["| rule | what every cell promises |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in RULES.items()]
    lines += ["", "| tier | where the damaged file lies |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in TIERS.items()]
    lines += ["", "| damage | what happened to it |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in DAMAGES.items()]
    counts = {name: len(cells(name, every_user())) for name in FORMATS}
    shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    users = ", ".join(f"`{name}`" for name in every_user())
    lines += ["", f"Users: {users}.", "", f"Cells that can be: {shown}."]
    return lines
