"""What every test shares: no test fails because the machine was busy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("lamina", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(  # for runs of the same tests on hundreds of mutants
    "few", settings.get_profile("lamina"), max_examples=12, derandomize=True, database=None
)
settings.load_profile(os.environ.get("LAMINA_TEST_EXAMPLES", "lamina"))


@pytest.fixture(scope="session", autouse=True)
def machine_code() -> Iterator[None]:
    """Tests try what is compiled, as users have it after a second; `test_first_use` the rest."""
    from lamina.formats.kernels.first_use import compiled_first

    with compiled_first():
        yield
