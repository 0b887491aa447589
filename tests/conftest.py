"""For all tests: hypothesis without deadlines, since machines are shared and a slow one has no bug."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("meander", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("meander")
