"""Looks into STRM objects: blocks of compressed records between a header and an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.kernels.fnv import fnv1a_64
from lamina.formats.strm import layout, salvage
from lamina.formats.strm import segment as strm_segment
from lamina.inspect.findings import Finding, Named, Row, described, named
from lamina.inspect.render import content_bytes, plain_rows, render_value

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ColdFile:
    """A STRM object."""

    name = "strm segment"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Checks the object as a whole, then finds which blocks are damaged, if any."""
        try:
            segment = strm_segment.verify(data)
        except NewerFormat as error:
            yield Finding(path, error.position, f"a newer format: {described(error)}")
        except CorruptData as error:
            whole = Finding(path, error.position, described(error))
            yield from list(self._bad_blocks(path, data)) or [whole]
        else:
            for field, problem in _contradictions(segment.header, named(path)):
                yield Finding(path, layout.HEADER.at(field), problem)

    def _bad_blocks(self, path: str, data: Buffer) -> Iterator[Finding]:
        try:
            segment = strm_segment.open_segment(data)
        except CorruptData:
            return
        for number in range(len(segment)):
            start, end = segment.block_range(number)
            try:
                strm_segment.read_block(segment, number, memoryview(data)[start:end])
            except CorruptData as error:
                following = end if number + 1 < len(segment) else None
                yield Finding(path, error.position, described(error), following)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the header, then the records from an offset on, decoding a block at a time.

        A compressed record has no bytes of its own in the file: `position` and `block_size` are
        those of its block, `size` is that of its key, value and headers. One flipped bit outside
        of the blocks is reported and costs no record.
        """
        try:
            segment = strm_segment.open_segment(data)
        except NewerFormat as error:
            yield Finding(path, error.position, f"a newer format: {described(error)}").as_row()
            return
        except CorruptData as error:
            yield Finding(path, error.position, described(error)).as_row()
            right = salvage.mended(bytes(data))
            if right is None:
                return
            segment, data = strm_segment.open_segment(right), right
        yield {"header": render_value(segment.header), "blocks": len(segment)}
        for number in range(segment.block_of(first), len(segment)):
            start, end = segment.block_range(number)
            try:
                batch = strm_segment.read_block(segment, number, memoryview(data)[start:end])
            except CorruptData as error:
                yield Finding(path, error.position, described(error), end).as_row()
                continue
            about: Row = {"block": number, "position": start, "block_size": end - start}
            skipped = int(np.searchsorted(batch.column("offset").to_numpy(), first))
            for row in plain_rows(batch.slice(skipped)):
                size = content_bytes(row)
                yield {**about, "size": size, "checksum": "ok", **render_value(row)}


def _contradictions(header: layout.Header, facts: Named) -> Iterator[tuple[str, str]]:
    """Yields each field of a header that contradicts the object's key."""
    if facts.number not in (None, header.base_offset):
        yield "base_offset", f"the object begins at offset {header.base_offset}, its name does not"
    if facts.topic is None:
        return
    if header.topic_hash not in (0, fnv1a_64(facts.topic.encode())):
        yield "topic_hash", f"the object is not of the topic {facts.topic!r}, as its path says"
    if header.partition != facts.partition:
        yield "partition", f"the object is of partition {header.partition}, its path says another"


STRM = ColdFile()
