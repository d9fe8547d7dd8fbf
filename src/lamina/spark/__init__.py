"""Spark over a log: session helper, source and sink. Needs `pip install 'lamina[spark]'`.

Rule: importing this package costs nothing. Every Python worker of Spark does it, before whatever
module of it the worker needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lamina.spark.batch import explain
    from lamina.spark.commit.handover import publishing
    from lamina.spark.session import session
    from lamina.spark.source import LaminaSource

__all__ = ["LaminaSource", "explain", "publishing", "session"]

_LAZY = {
    "LaminaSource": "lamina.spark.source",
    "explain": "lamina.spark.batch",
    "publishing": "lamina.spark.commit.handover",
    "session": "lamina.spark.session",
}


def __getattr__(name: str) -> object:
    """Imports each name when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'lamina.spark' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
