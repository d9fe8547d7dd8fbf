"""From the process that commits for Spark to the one that has the store open.

Spark commits in a process of its own beside the driver. If nobody has the store open, that process
opens it, commits, and closes it. If the user's own program has it open, with producers appending
meanwhile, that program says `with lamina.spark.publishing(store):` and takes transactions over:

    sink/lock                 held while somebody takes transactions over
    sink/inbox/<uuid>.json    a transaction, put there durably by the committing process
    sink/inbox/<uuid>.done    the answer: {"error": null}, or what went wrong

Rules.
1. A question may be asked twice and answered late: settling a transaction is idempotent.
2. The committing process gives up after a time; then the outcome is unknown until it is repeated.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator

from lamina.errors import InvalidRequest, LaminaError, Locked, Unavailable
from lamina.formats.documents.sink_transaction import (
    Transaction,
    decode_transaction,
    encode_transaction,
)
from lamina.spark.commit.transaction import Publisher
from lamina.storage import machine, paths
from lamina.storage.files import Files, LocalFiles, Lock, wall_clock_ms
from lamina.store.store import Store

LOGGER = logging.getLogger("lamina.spark")
LOOK_S = 0.01


def publish(data: str, transaction: Transaction, *, files: Files, timeout_ms: int) -> bool:
    """Commits a transaction, through whoever has the store open; False if it was before."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while True:
        if files.is_locked(paths.join(data, paths.SINK_LOCK)):
            answer = _ask(data, transaction, files, deadline_s)
            if answer is not None:
                return answer
        try:
            store = Store(data, files=files)
        except Locked as error:
            if time.monotonic() > deadline_s:
                raise Locked(
                    f"{error}; nothing was committed. Close it there, or let that program say"
                    " `with lamina.spark.publishing(store):`"
                ) from error
            time.sleep(LOOK_S)
            continue
        with store:
            publisher = Publisher(store, files, data, wall_clock_ms)
            stored = publisher.settle(transaction)
            publisher.go_on()  # for other applications; it sweeps, so not before this one is safe
            return stored


def _ask(data: str, transaction: Transaction, files: Files, deadline_s: float) -> bool | None:
    """Hands a transaction over and waits; None if the one who takes them over went away."""
    inbox = paths.join(data, paths.SINK_INBOX)
    files.make_directory(inbox)
    question = paths.join(inbox, uuid.uuid4().hex)
    files.replace(question + paths.SINK_ASKED, encode_transaction(transaction))
    while not files.exists(question + paths.SINK_ANSWERED):
        if not files.is_locked(paths.join(data, paths.SINK_LOCK)):
            with contextlib.suppress(FileNotFoundError):
                files.remove(question + paths.SINK_ASKED)
            return None
        if time.monotonic() > deadline_s:
            raise Unavailable(
                f"the process that has {data} open did not answer in time: whether the transaction"
                " is stored is not known; repeat it, a repeat is stored once"
            )
        time.sleep(LOOK_S)
    answer = json.loads(files.read(question + paths.SINK_ANSWERED))
    with contextlib.suppress(FileNotFoundError):
        files.remove(question + paths.SINK_ANSWERED)
    if answer["error"] is not None:
        raise Unavailable(f"the process that has {data} open could not commit: {answer['error']}")
    return bool(answer["stored"])


class Inbox:
    """Takes transactions over in a thread, until it is closed."""

    def __init__(self, store: Store, data: str, files: Files) -> None:
        self._files = files
        self._inbox = paths.join(data, paths.SINK_INBOX)
        files.make_directory(self._inbox)
        self._lock = _locked(files, paths.join(data, paths.SINK_LOCK))
        self._publisher = Publisher(store, files, data, wall_clock_ms)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lamina-inbox", daemon=True)

    def start(self) -> None:
        """Finishes what was decided before, then begins to take transactions over."""
        self._publisher.go_on()
        for name in self._files.list(self._inbox):
            if name.endswith(paths.SINK_ANSWERED):  # nobody waits for it any more
                self._files.remove(paths.join(self._inbox, name))
        self._thread.start()

    def close(self) -> None:
        """Answers what was asked, then ends."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._lock.release()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for name in self._files.list(self._inbox):
                if name.endswith(paths.SINK_ASKED):
                    self._answer(paths.join(self._inbox, name))

    def _answer(self, path: str) -> None:
        try:
            raw = self._files.read(path)
        except FileNotFoundError:
            return  # it was taken back
        try:
            stored = self._publisher.settle(decode_transaction(raw))
            answer: dict[str, object] = {"error": None, "stored": stored}
        except (LaminaError, OSError) as error:
            LOGGER.warning("a transaction could not be committed: %s", error)
            answer = {"error": f"{type(error).__name__}: {error}", "stored": False}
        with contextlib.suppress(OSError):  # whoever asked will ask again
            question = path.removesuffix(paths.SINK_ASKED)
            self._files.replace(question + paths.SINK_ANSWERED, json.dumps(answer).encode())
            self._files.remove(path)


def _locked(files: Files, path: str) -> Lock:
    """Takes the lock; one who only looks whether it is held may hold it for an instant."""
    for _ in range(10):
        with contextlib.suppress(Locked):
            return files.lock(path, machine.holder())
        time.sleep(LOOK_S)
    raise InvalidRequest("transactions of this directory are taken over already")


@contextlib.contextmanager
def publishing(store: Store) -> Iterator[None]:
    """Makes a store that is open in this process accept the commits of Spark's sink.

    Its producers go on appending meanwhile. Finishes first what a killed one had decided.
    """
    inbox = Inbox(store, store.path, LocalFiles())
    try:
        inbox.start()
        yield
    finally:
        inbox.close()
