"""A bucket, a clock, and brokers that share them."""

from __future__ import annotations

import itertools

import pytest

from lamina.storage.objects import Objects
from tests.archive.rig import memory
from tests.store.seat_rig import Broker, Brokers, Time


@pytest.fixture
def objects() -> Objects:
    return memory()


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def brokers(objects: Objects, clock: Time) -> Brokers:
    names = itertools.count(1)
    return lambda: Broker(objects, f"b{next(names)}", clock)
