"""What is piped into a command that appends: any bytes, and more than a record takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.test_topic import ok, typed, where
from tests.cli.test_tracebacks import one_line

__all__ = ["typed", "where"]
LIMIT_BYTES = 16 << 20
APPENDING = [("topic", "produce", "t"), ("cat", "-P", "-t", "t")]


@pytest.mark.parametrize("command", APPENDING)
def test_any_bytes_are_kept_and_a_record_over_the_limit_is_one_line(
    lamina: Any, where: list[str], typed: Any, command: tuple[str, ...]
) -> None:
    ok(lamina("topic", "create", "t", *where))
    typed(b"\xff\xfe\x00\x80\n")
    ok(lamina(*command, *where))
    typed(b"x" * (LIMIT_BYTES + 1))
    ran = lamina(*command, *where)
    one_line(ran, 2)
    assert (ran.out, ran.err.count("\n")) == ("", 1)
    rows = ok(lamina("topic", "consume", "t", "-o", ":end", "--json", *where)).rows
    assert [row["value"] for row in rows] == [{"base64": "//4AgA=="}]
