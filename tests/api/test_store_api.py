"""One face: every kind of store has all of it, with the same arguments, and nothing beside it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import GroupApi, StoreApi
from lamina.client.remote_group import RemoteGroup
from lamina.errors import Closed, InvalidRequest
from lamina.groups.group import Group
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served
from tests.support.public_calls import Caller, Target, answers, public_names, signature_of

KINDS: dict[str, type[StoreApi]] = {
    "embedded": lamina.Store,
    "read-only": lamina.ReadOnlyStore,
    "archive": lamina.ArchiveStore,
    "served": lamina.RemoteStore,
}
GROUPS: dict[str, type[GroupApi]] = {"embedded": Group, "served": RemoteGroup}
NAMES = public_names(StoreApi)
ENDS_IT = "close"
REFUSED = {
    "embedded": set[str](),
    "read-only": {
        *("append", "append_async", "append_batch", "producer_position", "create_topic"),
        *("alter_topic", "delete_topic", "create_router", "alter_router", "delete_router"),
        *("trim", "delete_records", "delete", "explain_retention", "roll", "flush", "maintain"),
        *("apply_retention", "archive", "group", "reset_group", "delete_group", "failures"),
        *("layers", "blocks", "add_partitions", "seat"),
        *("raw_record", "extents", "writers", "sinks", "tier", "segmented", "wal_partitions"),
        *("write_ahead_log", "purge_wal", "identity", "recovery_report", "coordinator"),
        *("join_group", "sync_group", "heartbeat", "leave_group", "commit_offsets"),
        *("describe_members", "new_producer_id", "set_schema"),
    },
    "served": {
        *(
            "seat",
            "path",
            "identity",
            "recovery_report",
            "gone_from",
            "layers",
            "blocks",
            "raw_record",
        ),
        *("extents", "writers", "sinks", "tier", "segmented", "wal_partitions"),
        *("write_ahead_log", "purge_wal", "coordinator", "new_producer_id"),
    },
}
"""What each kind cannot do; everything else it does itself."""
REFUSED["archive"] = REFUSED["read-only"] | {
    *("path", "groups", "describe_group", "tier_status", "committed_offsets"),
}
SENTENCES = {
    "read-only": "the store is open read-only; {} works on one that is open for writing",
    "archive": "an archive is read-only; `lamina tier restore` makes a store of it, for {}",
    "served": "{} is not served; it works on a store opened by this process",
}


def parameters(kind: type, name: str) -> list[tuple[str, Any, Any]] | None:
    found = inspect.getattr_static(kind, name)
    if isinstance(found, property):
        return None
    signature = inspect.signature(getattr(kind, name))
    return [(each.name, each.kind, each.default) for each in signature.parameters.values()]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_of_store_is_the_face_and_has_nothing_beside_it(kind: type[StoreApi]) -> None:
    assert issubclass(kind, StoreApi)
    assert public_names(kind) == NAMES


@pytest.mark.parametrize("kind", GROUPS.values(), ids=GROUPS)
def test_a_kind_of_group_is_the_face_and_has_nothing_beside_it(kind: type[GroupApi]) -> None:
    assert issubclass(kind, GroupApi)
    assert public_names(kind) == public_names(GroupApi)
    assert not inspect.isabstract(kind)


@pytest.mark.parametrize("name", [*NAMES, ENDS_IT])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_store_takes_the_arguments_of_the_face(kind: type[StoreApi], name: str) -> None:
    assert parameters(kind, name) == parameters(StoreApi, name)
    if parameters(kind, name) is not None:
        assert getattr(kind, name).__doc__ == getattr(StoreApi, name).__doc__


@pytest.mark.parametrize("name", public_names(GroupApi))
@pytest.mark.parametrize("kind", GROUPS.values(), ids=GROUPS)
def test_a_group_takes_the_arguments_of_the_face(kind: type[GroupApi], name: str) -> None:
    assert parameters(kind, name) == parameters(GroupApi, name)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_cannot_do_is_known(kind: str) -> None:
    assert {name for name in NAMES if not answers(KINDS[kind], name)} == REFUSED[kind]
    assert answers(KINDS[kind], ENDS_IT)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_is_a_method_of_a_face(operation: Any) -> None:
    face = GroupApi if operation.is_of_group else StoreApi
    found = inspect.getattr_static(face, operation.name.split(".")[-1])
    assert operation.method is getattr(found, "fget", found)
    assert set(operation.hints) >= set(operation.signature.parameters)


# ---------------------------------------------------------------- what a kind cannot do


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, StoreApi]]:
    folder: Path = tmp_path_factory.mktemp("kinds")
    objects = str(folder / "objects")
    with lamina.open(str(folder / "data"), archive=objects) as store:
        store.create_topic("orders", config={"remote.storage.enable": "true"})
        store.append("orders", b"first")
        store.roll("orders")
        store.archive()
    with (
        served(folder / "served") as service,
        lamina.open(str(folder / "data"), read_only=True) as reader,
        lamina.open(f"file://{objects}", read_only=True) as archive,
        lamina.connect(service.flight_url) as remote,
    ):
        yield {"read-only": reader, "archive": archive, "served": remote}


def end_of(store: StoreApi, name: str) -> BaseException | None:
    signature = signature_of(type(store), name)
    if signature is None:
        return Caller()(lambda: getattr(store, name))
    given = Target(lambda: store, type(store)).arguments(name, signature)
    return Caller()(lambda: getattr(store, name)(**given))


REFUSALS = [(kind, name) for kind in SENTENCES for name in sorted(REFUSED[kind])]


@pytest.mark.parametrize(("kind", "name"), REFUSALS)
def test_what_a_kind_cannot_do_says_so(stores: dict[str, StoreApi], kind: str, name: str) -> None:
    error = end_of(stores[kind], name)
    assert type(error) is InvalidRequest
    done_by = {"append_batch": "append"}.get(name, name)
    assert str(error) == SENTENCES[kind].format(done_by)


def test_a_directory_that_is_read_knows_where_it_is(stores: dict[str, StoreApi]) -> None:
    assert Path(stores["read-only"].path).name == "data"


def test_a_kind_that_is_new_can_do_nothing_and_says_so() -> None:
    class Nothing(StoreApi):
        """A store that implements nothing."""

    for name in [*NAMES, ENDS_IT]:
        assert type(end_of(Nothing(), name)) is InvalidRequest, name


def test_a_client_that_is_closed_says_that_first(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        remote = lamina.connect(service.flight_url)
        remote.close()
        assert type(end_of(remote, "layers")) is Closed
