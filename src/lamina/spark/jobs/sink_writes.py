"""Writing through the sink from the bulk lane: tasks stage, the driver commits, a journal knows.

The writer is the one of `format("lamina")`: a task's rows are staged by `write`, and one `commit`
on the driver stores them under (application, number). The application is made from the job's
inputs, so the same command means the same application, and a journal says which work its numbers
stand for: a killed run is repeated under its own number and stores nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter
from pyspark.sql.types import StructType

from lamina.errors import InvalidRequest
from lamina.spark.jobs.intents import Intent, Journal
from lamina.spark.jobs.lane import typed_failures
from lamina.spark.jobs.topic_rows import Topic
from lamina.spark.jobs.whereabouts import Place
from lamina.spark.source import LaminaSource
from lamina.storage import paths
from lamina.storage.files import LocalFiles

COMMIT_TIMEOUT_MS = 600_000
STAGING = "staging"

NextWork: TypeAlias = Callable[[Intent | None], dict[str, Any] | None]
"""Returns what to do after an intent, or after none; None if nothing."""
Stage: TypeAlias = Callable[[Intent], Callable[[], None]]
"""Stages the rows of an intent, and returns what commits them."""


def application_of(job: str, target: str, *inputs: Any) -> str:
    """Names the writer of a job: the same inputs give the same name."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    return f"{job}-{target[:80]}-{digest[:16]}"


def journal_of(place: Place, application: str, state: str | None) -> Journal:
    """Finds a job's journal: beside the sink's own state, or where the user says."""
    if state is not None:
        folder = paths.join(paths.absolute(state), application)
    elif place.path is not None:
        folder = paths.join(place.path, paths.sink_directory(application))
    else:
        raise InvalidRequest(
            "with --server, say where this job remembers what it does: --state DIRECTORY"
        )
    return Journal(LocalFiles(), folder, application)


def writer_of(
    place: Place, target: Topic, schema: StructType, intent: Intent, journal: Journal
) -> DataSourceArrowWriter:
    """Makes the writer of one intent's transaction; for a server it stages beside the journal."""
    options = {
        **place.options,
        "topic": target.name,
        "txnAppId": journal.application,
        "txnVersion": str(intent.number),
        "commitTimeoutMs": str(COMMIT_TIMEOUT_MS),
    }
    if place.server is not None:
        options["stagingPath"] = paths.join(journal.directory, STAGING)
    made = LaminaSource(CaseInsensitiveDict(options)).writer(schema, False)
    assert isinstance(made, DataSourceArrowWriter)
    return made


def settle(journal: Journal, next_work: NextWork, stage: Stage) -> list[Intent]:
    """Stores what a killed run left open, then what is new; returns what was stored, in order.

    An intent of this run whose staging fails is taken back: nobody was asked to commit it. One of a
    killed run is not, because it may be decided even later, by whoever has the store open.
    """
    settled = []
    with journal.alone(), typed_failures():
        last = journal.last()
        if last is not None and not last.is_stored:
            stage(last)()
            last = _stored(journal, last)
            settled.append(last)
        work = next_work(last)
        if work is not None:
            intent = Intent(last.number + 1 if last else 1, False, work)
            journal.write(intent)
            try:
                commit = stage(intent)
            except Exception:
                journal.take_back(last)
                raise
            commit()
            settled.append(_stored(journal, intent))
    return settled


def planned(journal: Journal, next_work: NextWork) -> list[Intent]:
    """Returns what `settle` would store, and changes nothing."""
    last = journal.last()
    found = [last] if last is not None and not last.is_stored else []
    work = next_work(last)
    return found if work is None else [*found, Intent(0, False, work)]


def _stored(journal: Journal, intent: Intent) -> Intent:
    done = Intent(intent.number, True, intent.work)
    journal.write(done)
    return done
