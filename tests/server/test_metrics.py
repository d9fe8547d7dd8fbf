"""What `/metrics` says: true numbers, bounded series, and nothing of others for a prefix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import lamina
from lamina.api import Pulse, WriterFacts
from lamina.api.writer_counts import bucket_of
from lamina.server import auth
from lamina.server.topic_counters import TopicCounters
from lamina.server.writer_totals import WriterTotals
from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from tests.server.kafka.raw_client import RawClient, fetched, made, produced
from tests.server.rig import served


def samples(page: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    return {
        each.name + "".join(f"{{{k}={v}}}" for k, v in sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(page)
        for each in family.samples
    }


def test_a_server_counts_itself_its_disk_and_its_doors(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=0) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t")
            store.append("t", [b"x" * 100] * 10)
            assert store.fetch("t", 0, 0).num_rows == 10
            assert sum(batch.num_rows for batch in store.scan("t", 0, 0)) == 10
        url = f"{service.http_url}/v1/topics/t"
        assert httpx.post(f"{url}/records", json={"records": [{"value": "y"}]}).status_code == 200
        assert httpx.get(f"{url}/partitions/0/records").status_code == 200
        with RawClient(service.kafka_address) as kafka:
            kafka.ask(PRODUCE, 8, produced("t", made([b"z"])))
            kafka.ask(FETCH, 11, fetched("t", 0))
            found = samples(httpx.get(f"{service.http_url}/metrics").text)
    assert found["lamina_kafka_connections"] == 1
    assert found["lamina_topic_appended_records_total{topic=t}"] == 12
    assert found["lamina_topic_appended_bytes_total{topic=t}"] > 1000
    assert found["lamina_topic_read_records_total{topic=t}"] == 10 + 10 + 11 + 12
    assert found["lamina_written_records_total"] == 12
    for door in ("flight", "http", "kafka"):
        assert found[f"lamina_received_bytes_total{{door={door}}}"] > 0
        assert found[f"lamina_sent_bytes_total{{door={door}}}"] > 0
    assert found["lamina_fsync_seconds_bucket{le=+Inf}"] >= 3
    assert found["lamina_commit_group_requests_count"] >= 3
    assert found["lamina_queue_requests"] == 0
    assert found["lamina_unsynced_records"] == 0
    assert found["lamina_disk_free_bytes"] > 0
    assert found["lamina_threads"] > 1
    assert found["process_open_fds"] > 0
    assert found["process_resident_memory_bytes"] > 0
    assert found["lamina_limit_max{what=inflight_bytes}"] == 256 << 20
    (build,) = [name for name in found if name.startswith("lamina_build_info")]
    assert re.search(r"\{version=\d+\.\d+", build)


def test_calls_that_are_refused_are_counted_by_why(tmp_path: Path) -> None:
    with served(tmp_path / "data", rate_requests=1) as service:
        url = f"{service.http_url}/v1/topics"
        while httpx.post(url, json={"name": "t"}).status_code == 503:
            pass
        while httpx.post(f"{url}/t/records", json={"records": [{"value": ""}]}).status_code == 503:
            pass
        for _ in range(200):
            httpx.get(url)
        for name in ("t", "t", "invented"):
            httpx.get(f"{url}/{name}")
        found = samples(httpx.get(f"{service.http_url}/metrics").text)
    assert found["lamina_refused_calls_total{reason=Busy}"] > 0
    assert found["lamina_topic_busy_calls_total{topic=t}"] >= 1
    assert found["lamina_topic_busy_calls_total{topic=}"] >= 1
    assert not [name for name in found if "invented" in name], "a name that a stranger chose"
    busy = [found[name] for name in found if re.match("lamina_calls_total.*outcome=Busy", name)]
    assert sum(busy) == found["lamina_refused_calls_total{reason=Busy}"]


def test_a_key_with_a_prefix_learns_of_its_topics_and_of_nothing_else(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    keys = {p: auth.create(path, scope="admin", prefix=p)[1] for p in ("", "mine.")}
    with served(tmp_path / "data", keys_file=path, metrics_topics=2) as service:
        with lamina.connect(service.flight_url, api_key=keys[""]) as store:
            for topic in ("mine.a", "theirs", "third", "fourth"):
                store.create_topic(topic)
                store.append(topic, b"v")
        pages = {
            prefix: samples(
                httpx.get(
                    f"{service.http_url}/metrics", headers={"authorization": f"Bearer {key}"}
                ).text
            )
            for prefix, key in keys.items()
        }
    mine = pages["mine."]
    assert mine["lamina_topic_appended_records_total{topic=mine.a}"] == 1
    assert not [name for name in mine if "theirs" in name or "third" in name]
    assert not [name for name in mine if "{topic=}" in name], "what others have together"
    assert not [name for name in mine if name.startswith(("process_", "lamina_disk", "lamina_fs"))]
    assert pages[""]["lamina_topic_appended_records_total{topic=}"] == 2, "beyond the most"


# ---------------------------------------------------------------- topics


def shown(counters: TopicCounters, topics: set[str], prefix: str = "") -> dict[str, float]:
    return {
        f"{each.name}:{each.labels['topic']}": each.value
        for family in counters.families(topics, prefix)
        for each in family.samples
        if each.name.endswith("_total")
    }


def test_topics_beyond_the_most_are_counted_together_and_those_deleted_go() -> None:
    counters = TopicCounters(2)
    for name in ("a", "b", "c", "d"):
        counters.appended(name, 1, 10)
    found = shown(counters, {"a", "b", "c", "d"})
    assert found["lamina_topic_appended_bytes_total:"] == 20
    assert {name.rpartition(":")[2] for name in found} == {"a", "b", ""}
    found = shown(counters, {"b", "c", "d"})
    assert {name.rpartition(":")[2] for name in found} == {"b", ""}
    counters.busy("b")
    counters.busy("c")
    found = shown(counters, {"b", "c", "d"})
    assert found["lamina_topic_busy_calls_total:b"] == found["lamina_topic_busy_calls_total:"] == 1
    counters.read("c", 5, 50)
    assert shown(counters, {"b", "c", "d"})["lamina_topic_read_records_total:c"] == 5


# ---------------------------------------------------------------- writers


def facts(name: str, *microseconds: int, groups: int = 0) -> WriterFacts:
    pulse = Pulse(groups=groups or len(microseconds), requests=len(microseconds))
    for each in microseconds:
        pulse.sync_microseconds[bucket_of(each)] += 1
        pulse.group_requests[bucket_of(1)] += 1
    return WriterFacts(name, name, 2, 10, 7, pulse)


def totals(writers: WriterTotals, *now: WriterFacts) -> dict[str, float]:
    return {
        each.name + each.labels.get("le", ""): each.value
        for family in writers.families(now)
        for each in family.samples
    }


def test_an_fsync_is_in_the_bucket_of_its_time() -> None:
    found = totals(WriterTotals(), facts("a", 100, 127, 128, 5000, 3_000_000))
    assert found["lamina_fsync_seconds_bucket0.000128"] == 2
    assert found["lamina_fsync_seconds_bucket0.000256"] == 3
    assert found["lamina_fsync_seconds_bucket0.008192"] == 4
    assert found["lamina_fsync_seconds_bucket2.09715"] == 4
    assert found["lamina_fsync_seconds_bucket+Inf"] == 5
    assert found["lamina_commit_group_requests_bucket1"] == 5
    assert (found["lamina_queue_requests"], found["lamina_unsynced_records"]) == (2, 3)


@pytest.mark.parametrize("then", [[], [facts("a", 1, groups=1)]])
def test_a_sum_never_shrinks_when_a_writer_goes_or_is_made_again(then: list[Any]) -> None:
    writers = WriterTotals()
    before = totals(writers, facts("a", 100, 100), facts("b", 100))
    assert before["lamina_fsync_seconds_bucket+Inf"] == 3
    after = totals(writers, facts("b", 100), *then)
    assert after["lamina_fsync_seconds_bucket+Inf"] == 3 + len(then)
