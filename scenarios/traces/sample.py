"""A random part of a trace, drawn while the file streams by."""

from __future__ import annotations

import hashlib

from scenarios.traces.rows import Extra

_DRAWN_AT_ONCE = 4096


class Sample:
    """Keeps a share of the requests, from a stream of its own; a session is kept or left out as a whole.

    A session's draw is a hash of its name and the seed, so that no session has to be remembered.
    """

    def __init__(self, share: float, seed: int) -> None:
        from scenarios.streams import stream  # here, for it loads numpy.random, and few traces are sampled

        self._share = share
        self._key = seed.to_bytes(16, "little")
        self._stream = stream(seed, "trace", "sample")
        self._draws: list[float] = []

    def keeps(self, extra: Extra | None) -> bool:
        """Return whether the next request is kept; `extra` holds its optional columns."""
        session = extra.get("session_id") if extra else None
        if session is not None:
            digest = hashlib.blake2b(session.encode(), digest_size=8, key=self._key).digest()
            return int.from_bytes(digest, "little") < self._share * 2.0**64
        if not self._draws:
            drawn: list[float] = self._stream.random(_DRAWN_AT_ONCE).tolist()
            self._draws = drawn[::-1]
        return self._draws.pop() < self._share
