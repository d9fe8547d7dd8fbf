"""Spark over a log: session helper, source and sink. Needs `pip install 'lamina[spark]'`."""

from lamina.spark.handover import publishing
from lamina.spark.session import session
from lamina.spark.source import LaminaSource, explain

__all__ = ["LaminaSource", "explain", "publishing", "session"]
