"""What a server logs: in words or as JSON, without secrets and without a flood."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import lamina
from lamina.errors import NotAllowed
from lamina.server import auth, log_lines
from lamina.server.log_lines import JsonLines, LogOutput, Refusals, told
from lamina.server.setting_table import ServerSettings
from tests.server.rig import served


@pytest.fixture
def output() -> Iterator[tuple[LogOutput, io.StringIO]]:
    stream, level = io.StringIO(), logging.getLogger().level
    made = LogOutput(ServerSettings(log_format="json"), stream)
    yield made, stream
    made.close()
    logging.getLogger().setLevel(level)


def test_a_line_is_one_json_object_with_its_event_and_fields(
    output: tuple[LogOutput, io.StringIO],
) -> None:
    logging.getLogger("lamina.server").info(
        "reload of %s\nand more", "x", extra=told("reload", changed={"a": 1}, odd=Path("p"))
    )
    try:
        raise ValueError("inside")
    except ValueError:
        logging.getLogger("lamina.server").exception("it failed")
    first, second = map(json.loads, output[1].getvalue().splitlines())
    assert first["event"] == "reload"
    assert first["changed"] == {"a": 1}
    assert first["message"] == "reload of x\nand more"
    assert first["level"] == "INFO"
    assert first["time"].endswith("Z")
    assert "ValueError: inside" in second["exception"]


def test_the_format_and_the_level_are_changed_while_it_runs(
    output: tuple[LogOutput, io.StringIO],
) -> None:
    log, stream = logging.getLogger("lamina.server"), output[1]
    output[0].apply(ServerSettings(log_format="text", log_level="warning"))
    log.info("not said")
    log.warning("said in words")
    assert stream.getvalue().endswith(" WARNING lamina.server: said in words\n")
    assert "not said" not in stream.getvalue()


def test_what_a_stranger_chose_ends_no_line_and_steers_no_terminal(
    output: tuple[LogOutput, io.StringIO],
) -> None:
    output[0].apply(ServerSettings(log_format="text"))
    log = logging.getLogger("lamina.server")
    log.warning("disconnected %s: %s", "x\n2026-11-19 INFO forged\x1b[2J\u2028", "größer…")
    try:
        raise ValueError("inside\x1b[2J")
    except ValueError:
        log.exception("it failed")
    line, failed, *traceback = output[1].getvalue().splitlines()
    assert line.endswith(r"disconnected x\n2026-11-19 INFO forged\x1b[2J\u2028: größer…")
    assert failed.endswith(": it failed")
    assert traceback[0].startswith("Traceback")
    assert traceback[-1] == r"ValueError: inside\x1b[2J"


def test_settings_are_logged_without_what_is_secret() -> None:
    settings = ServerSettings(archive="s3://key:secret@bucket/prefix", waiting=7)
    assert log_lines.settings_of(settings) == {
        "archive": "s3://***@bucket/prefix",
        "max.waiting": 7,
    }


def test_refusals_of_one_kind_are_logged_a_few_times_a_minute_and_then_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for number in range(100):
        refusals.note("strangers from a", "refused %d", number)
    refusals.note("strangers from b", "refused %d", 1000)
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [f"refused {number}" for number in (0, 1, 2, 3, 4, 1000)]
    refusals.sweep()
    assert len(caplog.records) == 6, "its minute is not over"
    now[0] = 61.0
    refusals.sweep()
    assert caplog.records[-1].getMessage() == "refused 95 more in a minute: strangers from a"
    refusals.note("strangers from a", "refused again")
    assert caplog.records[-1].getMessage() == "refused again"
    assert len(caplog.records) == 8


def test_kinds_are_bounded_whatever_strangers_call_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals(lambda: 0.0)
    for number in range(3 * log_lines.KINDS_MAX):
        refusals.note_stranger("http", f"host-{number}", NotAllowed("no"))
    assert len(refusals._seen) == log_lines.KINDS_MAX + 1
    assert refusals.strangers == 3 * log_lines.KINDS_MAX
    assert len(caplog.records) == log_lines.KINDS_MAX + log_lines.LINES_PER_MINUTE


def test_a_server_says_what_it_is_and_logs_no_call_that_was_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "httpx")
    path = str(tmp_path / "keys.json")
    _, text = auth.create(path, scope="admin")
    with (
        caplog.at_level(logging.INFO),
        served(tmp_path / "data", keys_file=path, kafka_port=0) as service,
    ):
        doors = f"{service.flight_url}, {service.http_url}, kafka://{service.kafka_address}"
        assert any(each.getMessage().endswith(f" on {doors}") for each in caplog.records)
        begun = len(caplog.records)
        with lamina.connect(service.flight_url, api_key=text) as store:
            store.create_topic("t")
            store.append("t", b"v")
            store.fetch("t", 0, 0)
        headers = {"authorization": f"Bearer {text}"}
        assert httpx.get(f"{service.http_url}/metrics", headers=headers).status_code == 200
        assert len(caplog.records) == begun, "no line for what went well"
        for _ in range(20):
            assert httpx.get(f"{service.http_url}/v1/topics").status_code == 401
        refused = [each for each in caplog.records if "refused a call" in each.getMessage()]
        assert len(refused) == log_lines.LINES_PER_MINUTE
        page = httpx.get(f"{service.http_url}/metrics", headers=headers).text
        assert "lamina_unknown_callers_total 20.0" in page
    events = {json.loads(JsonLines().format(each)).get("event") for each in caplog.records}
    assert {"starting", "recovered", "serving", "refused", "stopped"} <= events
    (starting,) = [each for each in caplog.records if each.getMessage().startswith("lamina ")]
    line = json.loads(JsonLines().format(starting))
    assert {"version", "python", "pyarrow", "settings"} <= line.keys()
    whole = caplog.text + json.dumps([JsonLines().format(each) for each in caplog.records])
    assert text not in whole
    assert auth.load(path)[0].sha256 not in whole


def test_recovery_is_logged_with_what_it_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [b"x" * 100] * 10)
    (index,) = (tmp_path / "data").rglob("*.idx")
    index.unlink()
    with caplog.at_level(logging.INFO), served(tmp_path / "data"):
        (line,) = [each for each in caplog.records if each.getMessage().startswith("recovered in")]
    assert isinstance(json.loads(JsonLines().format(line))["found"], dict)
