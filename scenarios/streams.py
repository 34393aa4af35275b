"""Named random streams: one for each class and purpose, independent of the others."""

import hashlib

import numpy as np

from simulator.errors import InputError


def stream(seed: int, class_name: str, purpose: str) -> np.random.Generator:
    """Return the random numbers of a class for a purpose ("arrivals", "input", ...) under a seed.

    They depend on these three alone, not on other classes or the policy. Raises InputError for a negative seed.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", hint="allowed: whole numbers from 0")
    name = f"{len(class_name)}:{class_name}:{purpose}".encode()
    digest = hashlib.sha256(name).digest()  # hash() differs from process to process
    key = tuple(int.from_bytes(digest[start : start + 4], "little") for start in range(0, 16, 4))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
