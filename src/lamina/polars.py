"""`lamina.polars.scan("data", "orders")`: a topic as a lazy frame. Needs `lamina[polars]`."""

from __future__ import annotations

from lamina.engines.polars_frames import scan

__all__ = ["scan"]
