"""One suite over every client: produce, read, groups, a restart of the broker, admin, errors.

`FEATURES` are the columns of the table in docs/kafka.md: a cell says that the test of that column
was run with that client, and holds the table to what is run here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from tests.server.kafka.client_kinds import (
    CODECS,
    KINDS,
    Driver,
    Kind,
    Refused,
    packed,
    packed_rows,
)
from tests.server.kafka.test_clients import RECORDS, plain
from tests.server.rig import free_port, served

FEATURES = ("codecs", "group of two", "restart", "seek", "times", "admin", "errors")
TABLE = Path(__file__).parents[3] / "docs" / "kafka.md"
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("suites") / "data", kafka_port=0) as service:
        yield service


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def client(server: Any, request: Any) -> Iterator[Driver]:
    kind: Kind = request.param
    if kind.missing:
        pytest.skip(f"{kind.name}: {kind.missing}")
    with Driver(kind, server.kafka_address) as driver:
        yield driver


def needs(client: Driver, feature: str) -> None:
    if feature in client.kind.lacks:
        pytest.skip(f"{client.kind.name} has nothing of that kind: {feature}")


def name_of(client: Driver, what: str) -> str:
    plain_name = "".join(each if each.isalnum() else "-" for each in client.kind.name)
    return f"{plain_name}-{what}"


def rows(first: int, count: int) -> list[Any]:
    """Records whose value is their number, a second apart."""
    return [
        [None, packed(b"%d" % number), START_MS + 1000 * number, []]
        for number in range(first, first + count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_it_produces_with_every_codec_it_and_others_read(
    server: Any, client: Driver, codec: str
) -> None:
    if codec not in client.kind.codecs:
        pytest.skip(f"{client.kind.name} has no {codec}")
    topic, records = name_of(client, codec), RECORDS
    if "headers without a name" in client.kind.lacks:
        records = [(*row, tuple(each for each in named if each[0])) for *row, named in RECORDS]
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic)
        offsets = client.ask("produce", topic=topic, codec=codec, records=packed_rows(records))
        assert offsets == list(range(len(records)))
        found = [plain(row) for batch in store.scan(topic) for row in batch.to_pylist()]
    if "timestamps" in client.kind.lacks:
        records = [
            (key, value, stored[2], named)
            for (key, value, _, named), stored in zip(records, found, strict=True)
        ]
    assert found == records
    read = client.ask("read", topic=topic, offset=0, count=len(records))
    assert read == packed_rows(records)


def settled(client: Driver, members: list[str], partitions: int) -> list[list[int]]:
    """Waits until members share all partitions, each having some."""
    while True:
        shares = [client.ask("assigned", member=member) for member in members]
        every = [each for share in shares for each in share]
        if all(shares) and sorted(every) == list(range(partitions)):
            return shares


def test_two_members_share_partitions_and_one_takes_over(server: Any, client: Driver) -> None:
    topic = name_of(client, "shared")
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, partitions=4)
    client.ask("join", member="a", group=topic, topic=topic)
    client.ask("join", member="b", group=topic, topic=topic)
    shares = settled(client, ["a", "b"], 4)
    for partition in range(4):
        client.ask("produce", topic=topic, codec="none", records=rows(0, 3), partition=partition)
    for member, share in zip("ab", shares, strict=True):
        taken = client.ask("take", member=member, count=3 * len(share))
        assert sorted((part, at) for part, at, _ in taken) == [
            (part, at) for part in sorted(share) for at in range(3)
        ]
    client.ask("leave", member="b")
    assert settled(client, ["a"], 4)
    client.ask("leave", member="a")


def test_it_goes_on_from_a_commit_and_seeks(server: Any, client: Driver) -> None:
    needs(client, "seek")
    topic = name_of(client, "sought")
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic)
    client.ask("produce", topic=topic, codec="none", records=rows(0, 20))
    client.ask("join", member="first", group=topic, topic=topic)
    assert [at for _, at, _ in client.ask("take", member="first", count=10)] == list(range(10))
    client.ask("seek", member="first", topic=topic, offset=3)
    assert [at for _, at, _ in client.ask("take", member="first", count=2)] == [3, 4]
    client.ask("commit", member="first", topic=topic, offset=7)
    client.ask("leave", member="first")
    client.ask("join", member="second", group=topic, topic=topic)
    assert client.ask("take", member="second", count=1)[0][1] == 7
    assert client.ask("committed", member="second", group=topic, topic=topic) == 7
    client.ask("leave", member="second")


def test_it_finds_offsets_by_time(server: Any, client: Driver) -> None:
    topic = name_of(client, "timed")
    times = [START_MS + 1000 * number for number in range(10)]
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic)
        if "timestamps" in client.kind.lacks:
            store.append(topic, [{"value": b"", "timestamp": time} for time in times])
        else:
            client.ask("produce", topic=topic, codec="none", records=rows(0, 10))
    for sought, found in ((START_MS - 5, 0), (START_MS + 3000, 3), (START_MS + 3001, 4)):
        assert client.ask("time", topic=topic, timestamp=sought) == found


def test_it_administers_topics_and_groups(client: Driver) -> None:
    needs(client, "admin")
    topic = name_of(client, "administered")
    client.ask("create", topic=topic, partitions=3, config={"retention.ms": "3600000"})
    assert topic in client.ask("topics")
    assert str(client.ask("config", topic=topic)["retention.ms"]) == "3600000"
    client.ask("join", member="looked", group=topic, topic=topic)
    assert settled(client, ["looked"], 3)
    assert topic in client.ask("groups")
    client.ask("leave", member="looked")
    client.ask("delete", topic=topic)
    assert topic not in client.ask("topics")


def test_it_is_told_what_is_wrong_and_works_on(server: Any, client: Driver) -> None:
    topic, config = name_of(client, "refused"), {"max.message.bytes": "2000"}
    if "admin" in client.kind.lacks:
        with lamina.connect(server.flight_url) as store:
            store.create_topic(topic, config=config)
    else:
        client.ask("create", topic=topic, partitions=1, config=config)
        with pytest.raises(Refused, match=r"(?i)exist"):
            client.ask("create", topic=topic, partitions=1, config={})
        with pytest.raises(Refused, match=r"(?i)unknown|not host"):
            client.ask("delete", topic=f"{topic}-not-there")
    large = [[None, packed(b"x" * 5000), START_MS, []]]
    with pytest.raises(Refused, match=r"(?i)large|size"):
        client.ask("produce", topic=topic, codec="none", records=large)
    assert client.ask("produce", topic=topic, codec="none", records=rows(0, 1)) == [0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_restart_of_the_broker_is_survived(kind: Kind, tmp_path: Path) -> None:
    if kind.missing:
        pytest.skip(f"{kind.name}: {kind.missing}")
    data, port, commits = tmp_path / "data", free_port(), "commits" not in kind.lacks
    with contextlib.ExitStack() as stack:
        with served(data, kafka_port=port) as service:
            with lamina.connect(service.flight_url) as store:
                store.create_topic("t")
            client = stack.enter_context(Driver(kind, f"127.0.0.1:{port}"))
            client.ask("produce", topic="t", codec="none", records=rows(0, 10))
            client.ask("join", member="m", group="g", topic="t")
            assert [at for _, at, _ in client.ask("take", member="m", count=5)] == list(range(5))
            if commits:
                client.ask("commit", member="m", topic="t", offset=5)
        with served(data, kafka_port=port):
            offsets = client.ask("produce", topic="t", codec="none", records=rows(10, 5))
            assert offsets == list(range(10, 15))
            taken: set[int] = set()
            while not set(range(5, 15)) <= taken:
                taken |= {at for _, at, _ in client.ask("take", member="m", count=1)}
            if commits:
                assert client.ask("committed", member="m", group="g", topic="t") == 5


def test_it_is_of_the_version_that_the_documentation_names(client: Driver) -> None:
    found, named = client.ask("version"), client.kind.name.split()[-1]
    assert f"{found}.".startswith(f"{named}."), (
        f"{client.kind.name} is {found} here: put it into KINDS and into docs/kafka.md"
    )


def test_the_topics_and_partitions_of_the_broker_are_listed(server: Any, client: Driver) -> None:
    topic = name_of(client, "listed")
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, partitions=3)
    assert topic in client.ask("topics")


def test_the_table_of_the_documentation_is_what_is_tested() -> None:
    said = {}
    for line in TABLE.read_text().splitlines():
        cells = [each.strip() for each in line.strip("| ").split("|")]
        if len(cells) == len(FEATURES) + 1:
            said[cells[0]] = cells[1:]
    assert said["client"] == list(FEATURES)
    for kind in KINDS:
        codecs = "all" if kind.codecs == CODECS else ", ".join(kind.codecs)
        tested = ["–" if each in kind.lacks else "yes" for each in FEATURES[1:]]
        assert said[kind.name] == [codecs, *tested], kind.name
