"""docs/kafka.md says which APIs are answered in which versions: those that the door advertises."""

from __future__ import annotations

import re
from pathlib import Path

from lamina.server.kafka import (
    cluster_metadata,
)
from lamina.server.kafka.handling import HANDLERS
from lamina.wire.kafka.apis import APIS

PAGE = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text()
VERSIONS = re.compile(r"(\d+)(?:–(\d+))?( each)?")


def told() -> dict[str, tuple[int, int]]:
    """Every API of the table with its versions."""
    found = {}
    lines = PAGE.split("| API | versions |")[1].split("\n\n")[0].splitlines()[2:]
    for line in lines:
        names, versions = (cell.strip() for cell in line.strip("|").split("|"))
        known = {api.name for api in APIS.values()}
        apis = [word for word in re.findall(r"[A-Za-z]+", names) if word in known]
        ranges = [VERSIONS.fullmatch(each) for each in versions.split(", ")]
        assert all(ranges), line
        pairs = [(int(each[1]), int(each[2] or each[1])) for each in ranges if each]
        if len(pairs) == 1:
            pairs *= len(apis)
        assert len(pairs) == len(apis), line
        found |= dict(zip(apis, pairs, strict=True))
    return found


def test_the_apis_of_the_page_are_those_that_are_advertised() -> None:
    said = cluster_metadata.api_versions(HANDLERS)["api_keys"]
    answered = {APIS[each["api_key"]].name: APIS[each["api_key"]] for each in said}
    assert told() == {name: (api.first, api.last) for name, api in answered.items()}
