"""Whatever a public method is given, whatever state its store is in: it answers or is typed.

The methods and their parameters are found by inspection (`tests.support.public_calls`), for every
kind of store and for what a store hands out, so that a new one is tried without being listed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.client.message import TopicPartition
from lamina.client.remote_group import RemoteGroup
from lamina.config import TopicSettings
from lamina.errors import LaminaError
from lamina.groups.group import Group
from tests.server.rig import served
from tests.support.public_calls import (
    ABSURD,
    CONFIGS,
    FORMATS,
    Caller,
    Target,
    anything,
    odd_calls,
    public_names,
    signature_of,
    told,
    untyped,
)

KINDS: dict[str, type] = {
    "store": lamina.Store,
    "read-only": lamina.ReadOnlyStore,
    "archive": lamina.ArchiveStore,
    "remote": lamina.RemoteStore,
    "group": Group,
    "remote-group": RemoteGroup,
    "producer": lamina.Producer,
    "consumer": lamina.Consumer,
    "remote-consumer": lamina.Consumer,
}
FACES = {"group": Group, "remote-group": Group}
PLACES = [TopicPartition("orders", 0, 0)]
ALL = [(kind, name) for kind, each in KINDS.items() for name in public_names(each)]


def fill(store: Any) -> None:
    """A topic of each format, archived in part, with records, a trim and a group that has some."""
    for topic, format_name in FORMATS.items():
        store.create_topic(
            topic, partitions=2, format=format_name, config={"remote.storage.enable": "true"}
        )
        for _ in range(3):
            store.append(topic, [b"first", b"second"], partition=0)
            store.roll(topic, 0)
        store.append(topic, [b"third"], partition=0)
        store.group(topic, "billing").poll(1)
    store.maintain()
    store.archive()


class World:
    """One directory, open in every way that there is."""

    def __init__(self, folder: Path) -> None:
        self.data, self.objects = folder / "data", folder / "objects"
        archive = f"file://{self.objects}"
        with lamina.open(str(self.data), archive=str(self.objects)) as store:
            fill(store)
        shutil.copytree(self.data, folder / "served")
        self.serving = served(folder / "served", archive=str(folder / "other"))
        service = self.serving.__enter__()
        self.store = lamina.open(str(self.data), archive=str(self.objects))
        self.reader = lamina.open(str(self.data), read_only=True, archive=str(self.objects))
        self.archive = lamina.open(archive, read_only=True)
        self.remote = lamina.connect(service.flight_url, timeout_s=20)

    def target(self, kind: str) -> Target:
        places = {"partitions": PLACES, "partition": PLACES[0]}
        consumer = {
            "consume": {"timeout": 0},
            "consume_batch": {"timeout": 0},
            "commit": {"offsets": PLACES},
        }
        stores = {"group": {"name": "billing"}, "create_topic": {"name": "made"}}
        for call in ("join_group", "sync_group", "heartbeat", "leave_group", "commit_offsets"):
            stores[call] = {"group": "classic"}  # members of it hold nothing of `billing`
        return {
            "store": Target(lambda: self.store, lamina.Store, by_method=stores),
            "read-only": Target(lambda: self.reader, lamina.ReadOnlyStore),
            "archive": Target(lambda: self.archive, lamina.ArchiveStore),
            "remote": Target(lambda: self.remote, lamina.RemoteStore, by_method=stores),
            "group": Target(lambda: self._group(self.store), Group),
            "remote-group": Target(lambda: self._group(self.remote), RemoteGroup),
            "producer": Target(lambda: self._producer(self.store), lamina.Producer),
            "consumer": Target(
                lambda: self._consumer(self.store), lamina.Consumer, places, consumer
            ),
            "remote-consumer": Target(
                lambda: self._consumer(self.remote), lamina.Consumer, places, consumer
            ),
        }[kind]

    @staticmethod
    def _group(store: Any) -> Any:
        store.group("orders", "billing")
        store.reset_group("orders", "billing", to=0, execute=True)
        return store.group("orders", "billing")

    @staticmethod
    def _producer(store: Any) -> Any:
        producer = lamina.Producer(store)
        producer.produce("orders", b"x", on_delivery=anything)  # a poll has something to wait for
        return producer

    @staticmethod
    def _consumer(store: Any) -> Any:
        consumer = lamina.Consumer(store, {"group.id": "readers"})
        consumer.assign(PLACES)
        return consumer

    def works(self) -> None:
        """Every store still does what it is for."""
        for store in (self.store, self.remote):
            for topic in FORMATS:
                before = store.latest_offset(topic, 0)
                assert store.append(topic, [b"again"], partition=0).base_offset == before
                found = pa.Table.from_batches(store.scan(topic, 0, before))
                assert found.column("value").to_pylist() == [b"again"]
            assert store.failures() == {}
        for topic in FORMATS:
            assert self.reader.earliest_offset(topic, 0) <= self.reader.latest_offset(topic, 0)
            assert self.archive.describe_topic(topic).name == topic

    def close(self) -> None:
        for each in (self.remote, self.archive, self.reader, self.store):
            each.close()
        self.serving.__exit__(None, None, None)


@pytest.fixture(scope="module")
def caller() -> Caller:
    return Caller()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    try:
        made.works()
    finally:
        made.close()


def ended(caller: Caller, target: Target, name: str, given: dict[str, Any]) -> BaseException | None:
    made = target.make()
    error = caller(lambda: getattr(made, name)(**given))
    if isinstance(made, lamina.Producer) and not untyped(error):
        return caller(made.close)  # what it delivers in its own thread counts too
    return error


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_arguments_that_make_no_sense_are_refused_by_a_typed_error(
    world: World, caller: Caller, kind: str, name: str
) -> None:
    target = world.target(kind)
    signature = signature_of(target.kind, name, FACES.get(kind, lamina.Store))
    if signature is None:
        assert not untyped(caller(lambda: getattr(target.make(), name)))
        return
    wrong = []
    for given in odd_calls(target, name, signature):
        error = ended(caller, target, name, given)
        if untyped(error):
            wrong.append(told(name, given, error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", public_names(lamina.Store))
def test_every_kind_of_store_has_what_a_store_has(name: str) -> None:
    """What a kind cannot do is refused by its name, never a missing attribute."""
    missing = [each.__name__ for each in list(KINDS.values())[:4] if not hasattr(each, name)]
    assert not missing


@pytest.mark.parametrize("setting", [item["key"] for item in TopicSettings.explained()])
def test_values_of_settings_that_make_no_sense_are_refused(
    world: World, caller: Caller, setting: str
) -> None:
    wrong = []
    for value in CONFIGS:
        for store in (world.store, world.remote):
            for topic in FORMATS:
                given = {"name": topic, "config": {setting: value}}
                error = caller(lambda store=store, given=given: store.alter_topic(**given))
                if untyped(error):
                    wrong.append(told("alter_topic", given, error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("key", ["acks", "linger.ms", "batch.num.messages", "group.id", "nothing"])
def test_settings_of_producers_and_consumers_are_checked(
    world: World, caller: Caller, key: str
) -> None:
    def use(kind: Any, value: Any) -> None:
        made = kind(world.store, {key: value})
        if kind is lamina.Producer:
            made.produce("orders", b"x")
        made.close()

    for kind in (lamina.Producer, lamina.Consumer):
        for value in (*CONFIGS, "0", "5", 5):
            error = caller(lambda kind=kind, value=value: use(kind, value))
            assert not untyped(error), told(kind.__name__, {key: value}, error)


@pytest.mark.parametrize("value", [each for each in ABSURD if each != "."], ids=lambda v: "")
def test_opening_and_connecting_refuse_what_makes_no_sense(
    tmp_path: Path, caller: Caller, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    place = str(tmp_path / "data")
    calls = (
        lambda: lamina.open(value, read_only=True),
        lambda: lamina.open(f"{tmp_path}/{value}" if isinstance(value, str) else value).close(),
        lambda: lamina.open(place, archive=value).close(),
        lambda: lamina.open(place, read_only=value),
        lambda: lamina.connect(value),
        lambda: lamina.connect("grpc://127.0.0.1:1", api_key=value).close(),
        lambda: lamina.connect("grpc://127.0.0.1:1", timeout_s=value).close(),
        lambda: lamina.connect("grpc://127.0.0.1:1", tls_root=value).close(),
        lambda: lamina.connect("grpc://127.0.0.1:1", idempotent=value).close(),
    )
    for number, call in enumerate(calls):
        error = caller(call)
        assert not untyped(error), told(f"call {number}", {"value": value}, error)


STATES = ("closed", "deleted", "damaged")


class Broken(World):
    """Stores in a state in which little works; every call on them still ends as it should."""

    def enter(self, state: str) -> None:
        if state == "closed":
            for each in (self.remote, self.archive, self.reader, self.store):
                each.close()
        elif state == "deleted":
            for store in (self.store, self.remote):
                for topic in FORMATS:
                    store.delete_topic(topic)
            shutil.rmtree(self.objects / "topics", ignore_errors=True)
        else:
            for file in (*self.data.rglob("*"), *self.objects.rglob("*")):
                if file.is_file() and file.stat().st_size:
                    raw = bytearray(file.read_bytes())
                    for at in range(0, len(raw), 97):
                        raw[at] ^= 0x55
                    file.write_bytes(raw)

    def close(self) -> None:
        for each in (self.remote, self.archive, self.reader, self.store):
            try:
                each.close()
            except LaminaError:
                continue
        self.serving.__exit__(None, None, None)


@pytest.mark.parametrize("state", STATES)
def test_a_store_in_a_bad_state_answers_by_typed_errors(
    tmp_path: Path, caller: Caller, state: str
) -> None:
    world = Broken(tmp_path)
    made = {kind: world.target(kind).make() for kind in KINDS}
    world.enter(state)
    wrong = []
    for kind, each in made.items():
        target = world.target(kind)
        for name in public_names(target.kind):
            signature = signature_of(target.kind, name, FACES.get(kind, lamina.Store))
            given = {} if signature is None else target.arguments(name, signature)
            for topic in FORMATS if "topic" in given else [""]:
                asked = given | ({"topic": topic} if topic else {})
                error = caller(
                    (lambda each=each, name=name, asked=asked: getattr(each, name)(**asked))
                    if signature is not None
                    else (lambda each=each, name=name: getattr(each, name))
                )
                if untyped(error):
                    wrong.append(f"{kind} {told(name, asked, error)}")
        error = caller(lambda each=each: each.close() if hasattr(each, "close") else None)
        if untyped(error):
            wrong.append(f"{kind} {told('close', {}, error)}")
    world.close()
    assert not wrong, "\n".join(wrong)


def test_a_directory_of_damaged_files_is_refused_or_read_by_typed_errors(
    tmp_path: Path, caller: Caller
) -> None:
    world = Broken(tmp_path)
    for each in (world.remote, world.archive, world.reader, world.store):
        each.close()
    world.enter("damaged")
    for read_only in (True, False):
        error = caller(
            lambda read_only=read_only: lamina.open(
                str(world.data), read_only=read_only, archive=str(world.objects)
            ).close()
        )
        assert not untyped(error), told("open", {"read_only": read_only}, error)
    world.close()
