"""The cross product is whole: nothing of the product is missing in it, and the page shows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import lamina
import lamina.polars
from lamina.api import State
from lamina.cli.main import app
from lamina.client.consumer import Consumer
from lamina.client.producer import Producer
from lamina.client.remote_group import RemoteGroup
from lamina.client.remote_store import RemoteStore
from lamina.formats.log_format import CODECS
from lamina.groups.group import Group
from lamina.inspect import kinds
from lamina.records import INPUT_SCHEMAS
from lamina.server.console.actions import ACTIONS
from lamina.server.http import Routes
from lamina.server.kafka.handling import HANDLERS
from lamina.store.archive_store import ArchiveStore
from lamina.store.read_only import ReadOnlyStore
from lamina.store.replica import ReplicaStore
from lamina.store.store import Store
from lamina.wire.kafka.apis import APIS
from lamina.wire.operations import OPERATIONS
from lamina_torture.cross.axes import DAMAGES, FORMATS, TIERS, Cell, impossible
from lamina_torture.cross.known import known_lines
from lamina_torture.cross.table import NOT_LAID_OUT, cells, covered, every_user, summary
from lamina_torture.cross.templates import make
from lamina_torture.cross.users import unmet
from tests.support.public_calls import answers

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()


FACES: tuple[type, ...] = (
    *(Store, ReadOnlyStore, ArchiveStore, ReplicaStore, RemoteStore),
    *(Group, RemoteGroup, Consumer, Producer),
)


def methods() -> Iterator[str]:
    """Every public method of every kind of store, and of what a store hands out.

    What a kind refuses is none of it.
    """
    for kind in FACES:
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_") and callable(member) and answers(kind, name):
                yield f"{kind.__name__}.{name}"


def commands(command: Any = None, words: tuple[str, ...] = ("lamina",)) -> Iterator[str]:
    """Every command of the command line."""
    found = typer.main.get_command(app) if command is None else command
    if not hasattr(found, "commands"):
        yield " ".join(words)
        return
    for name, below in found.commands.items():
        yield from commands(below, (*words, name))


def routes() -> Iterator[str]:
    """Every route of the HTTP door with its verb; POST and others of operations are Store's own."""
    from lamina.server.broker import Broker
    from lamina.server.setting_table import ServerSettings

    by_store = {(each.verb, each.path) for each in OPERATIONS.values() if each.verb != "GET"}
    for route in Routes(Broker(ServerSettings(), None)).application().routes:
        for verb in getattr(route, "methods", None) or ("GET",):
            if verb != "HEAD" and (verb, route.path) not in by_store:
                yield f"{verb} {route.path}"


def kafka_apis() -> Iterator[str]:
    """Every API that the Kafka door answers."""
    for key in HANDLERS:
        yield f"kafka {APIS[key].name}"


def functions() -> Iterator[str]:
    """Every function that a program calls without a store: `lamina.open` and its like."""
    for module in (lamina, lamina.polars):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield f"{module.__name__}.{name}"


def product() -> set[str]:
    actions = (f"action {name}" for name in ACTIONS)
    return {*methods(), *functions(), *commands(), *routes(), *kafka_apis(), *actions}


def missing(found: set[str]) -> list[str]:
    return sorted(found - covered())


def test_everything_of_the_product_is_a_user_or_has_a_reason_not_to_be() -> None:
    assert missing(product()) == []


def test_the_table_names_nothing_that_is_not_there() -> None:
    assert sorted(covered() - product()) == ["Spark source"]


@pytest.mark.parametrize(
    "new", ["Store.merge", "lamina topic split", "GET /v2/topics", "kafka Vote", "lamina.merge"]
)
def test_whatever_is_new_is_missing_in_the_table(new: str) -> None:
    assert missing(product() | {new}) == [new]


def test_a_new_method_of_a_store_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(self: object) -> None:
        """Is new."""

    monkeypatch.setattr(Store, "merge", merge, raising=False)
    monkeypatch.setattr(ArchiveStore, "merge", merge, raising=False)
    assert missing(product()) == ["ArchiveStore.merge", "Store.merge"]


def test_a_new_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge() -> None:
        """Is new."""

    monkeypatch.setattr(lamina, "merge", merge, raising=False)
    monkeypatch.setattr(lamina, "__all__", [*lamina.__all__, "merge"])
    assert missing(product()) == ["lamina.merge"]


def test_every_kind_of_file_is_in_the_directories_of_cells_or_has_a_reason(
    tmp_path: Path,
) -> None:
    """What is not laid out, no user ever meets damaged."""
    found = set()
    for format_name in FORMATS:
        root = tmp_path / "root"
        for path, data in make(root, format_name, archived=True).files.items():
            kind = kinds.recognise(f"{root}/{path}", data[:8])
            assert kind is not None, f"{path} is no file that `lamina verify` knows"
            found.add(kind.name)
    known = {kind.name for kind in kinds.every_kind()}
    assert found <= known
    assert sorted(known - found) == sorted(NOT_LAID_OUT)


def test_every_format_and_every_state_of_a_layer_is_an_axis() -> None:
    assert {*CODECS, "wal"} == set(FORMATS) == set(INPUT_SCHEMAS) - {"strm"}, "strm is a tier"
    places = {"active": "active", "sealed": "sealed", "cold": "cold", "gone": None}
    assert set(get_args(State)) == set(places)
    assert {place for place in places.values() if place} <= set(TIERS)


def test_what_cannot_be_has_a_reason_and_the_rest_is_a_cell() -> None:
    whole = len(TIERS) * len(DAMAGES) * len(every_user())
    for format_name in FORMATS:
        possible = cells(format_name, every_user())
        left_out = [
            cell
            for tier in TIERS
            for damage in DAMAGES
            for user in every_user()
            if (cell := Cell(format_name, tier, damage, user)) not in possible
        ]
        assert len(possible) + len(left_out) == whole
        assert all(impossible(each) or unmet(every_user()[each.user], each) for each in left_out)
        assert {(cell.tier, cell.damage) for cell in possible} >= {
            (tier, damage) for tier in ("active", "sealed", "object") for damage in DAMAGES
        }


def test_the_page_shows_the_table_and_the_known_defects_as_they_are() -> None:
    shown = PAGE.split("<!-- cross: begin -->\n")[1].split("\n<!-- cross: end -->")[0]
    assert shown == "\n".join([*summary(), "", *known_lines()])
