"""What every test shares: no test fails because the machine was busy."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("lamina", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lamina")
