"""Why a segment with a tombstone goes: what its `.tomb` says, in the words of the ledger."""

from __future__ import annotations

from lamina.errors import CorruptData
from lamina.formats.documents import tombstone
from lamina.storage.files import Files


def reason_at(files: Files, path: str) -> str:
    """Reads the reason from a tombstone; one that says none, or is damaged, is of retention."""
    try:
        reason = tombstone.decode(files.read(path)).reason or "retention"
    except CorruptData:
        return "retention"
    return "deleted" if reason == "delete" else reason
