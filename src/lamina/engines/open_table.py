"""From where a log is to a dataset of one of its topics."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import lamina
from lamina.api import StoreApi
from lamina.arguments import flag, location, text
from lamina.engines.dataset import LogDataset
from lamina.errors import InvalidRequest

Where: TypeAlias = str | Path | StoreApi
"""A data directory, an archive's URL, a server's URL, or a store that is open already."""
POLICIES = ("raise", "null")
"""What a table does about a record that its schema does not fit; a query buries none."""
SERVED = ("grpc://", "grpc+tls://", "grpc+tcp://")


def dataset(
    where: Where,
    topic: str,
    *,
    archive: str | None = None,
    api_key: str | None = None,
    fail_on_data_loss: bool = True,
    errors: str = "raise",
) -> LogDataset:
    """Returns a topic as a `pyarrow.dataset.Dataset`.

    `where` is a data directory, the URL of an archive or of a server, or an open store.
    `archive` names the object store of a data directory that does not remember it. With
    `fail_on_data_loss=False` records that cannot be read are left out with a warning, instead of
    RecordsMissing. With `errors="null"` a record of a typed topic that does not fit its schema is a
    row of nulls, with the reason in a column `_error`, instead of SchemaError. The dataset closes
    what it opened with `close()`, or at the end of a `with`.
    """
    text("topic", topic)
    flag("fail_on_data_loss", fail_on_data_loss)
    if errors not in POLICIES:
        raise InvalidRequest(f"errors is one of {', '.join(POLICIES)} for a table, not {errors!r}")
    if isinstance(where, StoreApi):
        if archive is not None or api_key is not None:
            raise InvalidRequest("an open store has its archive and its key already")
        return LogDataset(where, topic, fail_on_data_loss=fail_on_data_loss, errors=errors)
    store = _opened(location("where", where), archive, api_key)
    try:
        return LogDataset(
            store, topic, fail_on_data_loss=fail_on_data_loss, errors=errors, owned=True
        )
    except BaseException:
        store.close()
        raise


def _opened(where: str, archive: str | None, api_key: str | None) -> StoreApi:
    if where.startswith(SERVED):
        if archive is not None:
            raise InvalidRequest("a server knows its archive; name it only with a directory")
        return lamina.connect(where, api_key=api_key)
    if api_key is not None:
        raise InvalidRequest("api_key is for a server (grpc://host:9300)")
    return lamina.open(where, read_only=True, archive=archive)
