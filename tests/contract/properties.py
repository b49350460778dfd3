"""Settings of the properties (Hypothesis). How many examples each has is the project's choice, by its profile."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SHARED_STORE = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
"""For properties whose examples share the check's store, each in a session or an owner of its own."""
