"""A topic as a lazy frame of Polars; needs `pip install 'lamina[polars]'`.

Polars hands its projection, its predicate and its limit to the dataset, which prunes by them.
"""

from __future__ import annotations

import polars

from lamina.engines.open_table import Where, dataset


def scan(
    where: Where,
    topic: str,
    *,
    archive: str | None = None,
    api_key: str | None = None,
    fail_on_data_loss: bool = True,
    errors: str = "raise",
) -> polars.LazyFrame:
    """Returns a topic as a lazy frame; see `lamina.dataset` for the arguments.

    Filters on `_offset`, `_partition` and `_timestamp` decide what is read at all.
    """
    table = dataset(
        *(where, topic),
        archive=archive,
        api_key=api_key,
        fail_on_data_loss=fail_on_data_loss,
        errors=errors,
    )
    return polars.scan_pyarrow_dataset(table)
