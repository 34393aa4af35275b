"""Step costs from measured kernels: a profile is read from JSON (`read`), and `ProfileCost` adds its kernels up."""

from simulator.timing.profile.profile_cost import Options, ProfileCost
from simulator.timing.profile.profile_schema import (
    SCHEMA,
    VERSION,
    Profile,
    described,
    load_profile,
    read_profile,
    refusal,
)

# Modules that setup.py compiles where that is asked for.
COMPILED = ("prices",)

__all__ = [
    "SCHEMA", "VERSION", "Options", "Profile", "ProfileCost", "described", "load_profile", "read_profile", "refusal",
]  # fmt: skip
