"""Settings that every test here shares."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing on a shared machine.
settings.register_profile("weight-checker", deadline=None, max_examples=200)
settings.load_profile("weight-checker")
