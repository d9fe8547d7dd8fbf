"""Found by Spark itself: modules called `pyspark_…` are searched for data sources."""

from lamina.spark.source import LaminaSource as DefaultSource

__all__ = ["DefaultSource"]
