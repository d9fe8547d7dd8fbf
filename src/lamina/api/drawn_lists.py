"""Lists that draw themselves: the layers of a partition, and how far a group is behind.

They are lists in every other way: equal to plain ones, sent and sliced like them.
"""

from __future__ import annotations

from collections.abc import Iterable

from lamina.api.answers import Layer, PartitionLag, lag_portrait
from lamina.api.portraits import Bar, Portrait, Shown, counted, shown_size, table_portrait


class Layers(Shown, list[Layer]):
    """The layers of a partition, oldest first: gone, cold, sealed, active."""

    __slots__ = ("_name",)

    def __init__(self, layers: Iterable[Layer], name: str = "partition") -> None:
        super().__init__(layers)
        self._name = name

    def _portrait(self) -> Portrait:
        largest = max((layer.size_bytes for layer in self), default=0) or 1
        total = sum(layer.size_bytes for layer in self)
        rows = (
            (
                Bar(((layer.size_bytes / largest, layer.state),)),
                layer.state,
                layer.base_offset,
                layer.next_offset,
                shown_size(layer.size_bytes),
                layer.compression or ("archived" if layer.archived else ""),
                layer.where,
            )
            for layer in self
        )
        title = f"{self._name}: {counted(len(self), 'layer')}, {shown_size(total)}"
        return table_portrait(
            title, ("", "state", "from", "to", "size", "", "where"), rows, len(self)
        )


class Lags(Shown, list[PartitionLag]):
    """How far a group is behind, partition by partition."""

    __slots__ = ("_name",)

    def __init__(self, lags: Iterable[PartitionLag], name: str = "group") -> None:
        super().__init__(lags)
        self._name = name

    def _portrait(self) -> Portrait:
        return lag_portrait(self._name, self)
