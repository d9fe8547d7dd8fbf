"""Work that takes longer than a request: verifying topics, archiving. With progress, and an end.

Verifying reads every record of a topic through the same reader as everybody: each checksum is
checked, of local segments and of archived blocks, and what cannot be read is a finding.

Rules.
1. At most `RUNNING_MAX` jobs run; a further one is refused, not queued.
2. A job reads in bounded batches and gives way between them; it ends early when it is told to.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from lamina.errors import Busy, Closed, InvalidRequest, LaminaError, RecordsMissing, Unavailable
from lamina.log.batch_offsets import after
from lamina.log.gap_walk import scan_over
from lamina.server import telling
from lamina.store.store import Store

_log = logging.getLogger("lamina.server")

RUNNING_MAX = 2
KEPT = 20
FINDINGS_MAX = 100
_BATCH_BYTES = 4 << 20
_PAUSE_S = 0.002


@dataclass(slots=True)
class Job:
    """One piece of work, running or done. `total` and `done` count records."""

    number: int
    kind: str
    topic: str | None
    by: str
    started_ms: int
    state: str = "running"
    done: int = 0
    total: int = 0
    size_bytes: int = 0
    ended_ms: int | None = None
    problem: str = ""
    findings: list[str] = field(default_factory=list)
    left: Callable[[], int] | None = None
    """How many records are left to do, where the work itself does not count."""

    def as_row(self) -> dict[str, Any]:
        """The job as JSON."""
        row = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "left"}
        if self.state == "running" and self.left is not None:
            row["done"] = min(self.total, max(0, self.total - self.left()))
        return row


class Jobs:
    """The jobs of one server."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._cancelled: set[int] = set()

    def rows(self) -> list[Job]:
        """Returns the jobs, the newest first."""
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: -job.number)

    def get(self, number: int) -> Job:
        """Returns a job; raises InvalidRequest if it is not known (any more)."""
        with self._lock:
            if number not in self._jobs:
                raise InvalidRequest(f"there is no job {number}")
            return self._jobs[number]

    def cancel(self, number: int) -> None:
        """Asks a job to end."""
        self.get(number)
        self._cancelled.add(number)

    def verify(self, store: Store, topic: str, by: str) -> Job:
        """Begins to read everything that a topic holds."""
        ranges = [
            (part.partition, store.earliest_offset(topic, part.partition), part.durable_offset)
            for part in store.describe_topic(topic).partitions
        ]
        total = sum(end - first for _, first, end in ranges)
        return self._begin(
            Job(next(self._numbers), "verify", topic, by, _now_ms(), total=total),
            lambda job: self._verify(store, job, ranges),
        )

    def archive(self, store: Store, by: str) -> Job:
        """Begins to archive everything that is sealed."""

        def left() -> int:
            return sum(each.records_behind for each in store.tier_status())

        job = Job(next(self._numbers), "archive", None, by, _now_ms(), total=left(), left=left)
        return self._begin(job, lambda job: _archive(store, job))

    def _begin(self, job: Job, work: Callable[[Job], None]) -> Job:
        with self._lock:
            running = [each for each in self._jobs.values() if each.state == "running"]
            if len(running) >= RUNNING_MAX:
                raise Busy(f"{RUNNING_MAX} jobs are running; wait for one to end", 5.0)
            self._jobs[job.number] = job
            ended = [each.number for each in self._jobs.values() if each.state != "running"]
            for number in ended[: max(0, len(self._jobs) - KEPT)]:
                del self._jobs[number]
        name = f"lamina-job-{job.number}"
        threading.Thread(target=self._run, args=(job, work), name=name, daemon=True).start()
        return job

    def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
            state = "cancelled" if job.number in self._cancelled else "done"
        except LaminaError as error:
            state, job.problem = "failed", telling.anybody(error)
        except Exception:
            _log.exception("%s of %s failed", job.kind, job.topic)
            state, job.problem = "failed", "the server failed; its log says how"
        job.ended_ms = _now_ms()
        self._cancelled.discard(job.number)
        job.state = state

    def _goes_on(self, job: Job) -> bool:
        if self._stopping.is_set():
            raise Closed("the server is stopping")
        return job.number not in self._cancelled

    def _verify(self, store: Store, job: Job, ranges: list[tuple[int, int, int]]) -> None:
        assert job.topic is not None, "a topic is verified"
        for partition, start, end in ranges:
            at = start
            scan = partial(store.scan, job.topic, partition, end=end, max_bytes=_BATCH_BYTES)
            for step in scan_over(scan, start, end):
                if not self._goes_on(job):
                    break
                following = step.end if isinstance(step, RecordsMissing) else after(step)
                job.done += min(following, end) - at
                at = following
                if isinstance(step, RecordsMissing):
                    _note(job, partition, step)
                    continue
                job.size_bytes += step.nbytes
                time.sleep(_PAUSE_S)
            else:  # what is left was deleted record by record
                job.done += max(0, end - at)


def _note(job: Job, partition: int, missing: RecordsMissing) -> None:
    if missing.reason == "lost" and len(job.findings) < FINDINGS_MAX:
        where = f"partition {partition}, offsets {missing.first} to {missing.end - 1}"
        job.findings.append(f"{where}: {missing.problem}")


def _archive(store: Store, job: Job) -> None:
    store.archive()
    job.done = job.total
    problems = {each.last_error for each in store.tier_status() if each.last_error}
    if problems:
        raise Unavailable("; ".join(sorted(problems)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
