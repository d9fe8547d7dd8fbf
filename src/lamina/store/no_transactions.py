"""The transactions of a store that holds a cluster: none, as no window carries one.

A transaction that is decided and half stored would be cut in two by a takeover.
"""

from __future__ import annotations

from typing import NoReturn

from lamina.errors import InvalidRequest
from lamina.store.transactions import Transactions


class NoTransactions(Transactions):
    """Refuses every transactional id; what the directory had decided before is still stored."""

    def init(self, name: str, timeout_ms: int, claimed: tuple[int, int] = (-1, -1)) -> NoReturn:
        """Raises InvalidRequest."""
        raise InvalidRequest(
            "a cluster carries no transactions yet: use an idempotent producer without a"
            " transactional id, or a broker without a cluster"
        )
