"""Work behind a program's back: once, in order, and waited for by a fork and by the end."""

from __future__ import annotations

import os
import threading

from lamina.storage.background_work import BackgroundWork

PATIENCE_S = 30


def test_jobs_are_done_once_and_in_order() -> None:
    work = BackgroundWork("test", 0)
    done: list[int] = []
    over = threading.Event()
    with work.lock:  # nothing begins before all is asked for
        for number in (1, 2, 1):
            work.want(number, lambda number=number: done.append(number))
        work.want("last", over.set)
    assert over.wait(PATIENCE_S)
    assert done == [1, 2]


def test_a_second_thread_does_what_is_wanted_after_the_first_ended() -> None:
    work = BackgroundWork("test", 0)
    for number in range(3):
        over = threading.Event()
        work.want(number, over.set)
        assert over.wait(PATIENCE_S)


def test_the_end_waits_for_the_job_that_runs_and_for_no_other() -> None:
    work = BackgroundWork("test", 0)
    begun, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        done.append("first")

    work.want("first", first)
    work.want("second", lambda: done.append("second"))
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.05, may_end.set).start()
    work.stop()
    assert done == ["first"]
    work.want("third", lambda: done.append("third"))
    assert done == ["first"]


def test_a_child_process_has_neither_lock_nor_work() -> None:
    work = BackgroundWork("test", 0)
    begun, may_end, over = threading.Event(), threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        over.set()

    work.want("long", long)
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.05, may_end.set).start()
    child = os.fork()  # waits for the job: the child must not have its lock
    if child == 0:
        again = threading.Event()
        is_free = work.lock.acquire(blocking=False)
        work.lock.release()
        work.want("long", again.set)
        os._exit(0 if is_free and over.is_set() and again.wait(PATIENCE_S) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
