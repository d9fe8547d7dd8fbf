"""Arguments of reads and appends are judged by their types, before anything is looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.errors import InvalidRequest
from tests.support.directories import opened


@pytest.mark.parametrize(
    "wrong", [{"partition": "0"}, {"partition": 0.0}, {"start": "1"}, {"wait_ms": "1"}]
)
def test_a_fetch_of_other_types_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t")
        store.append("t", [b"value"])
        given: dict[str, Any] = {"topic": "t", "partition": np.int64(0), "start": np.int64(0)}
        assert store.fetch(**given).num_rows == 1, "any whole number will do"
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            store.fetch(**{**given, **wrong})


def test_an_append_to_a_partition_of_another_type_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t")
        assert store.append("t", [b"value"], partition=np.int64(0)).base_offset == 0
        for wrong in ("0", 0.0):
            with pytest.raises(InvalidRequest, match="partition"):
                store.append("t", [b"value"], partition=wrong)  # type: ignore[arg-type]
