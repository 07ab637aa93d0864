"""Where the time of an iteration goes."""

import time


class Clock:
    """Adds up seconds by part: ``begin``, then ``lap`` after each part."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Begin: what went before belongs to no part."""
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add what went since the last mark to ``part``."""
        now = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now

    def drain(self) -> dict[str, float]:
        """Return seconds by part since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
