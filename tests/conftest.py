"""What holds for every test: the machine's speed decides nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is slow to draw inputs and slow to run them; neither says anything about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
