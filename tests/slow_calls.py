"""What processes of tests call: it imports next to nothing, as each of them imports it again."""

import os
import time

from multigrid_rl.text import ConfigError


def slow_square(number, tell):
    """Negative ones die, zero is refused, ten waits until it is ended."""
    tell("begun")
    if number < 0:
        os._exit(7)
    if number == 0:
        raise ConfigError("number: expected another one, got 0")
    if number == 10:
        time.sleep(60)
    return number**2


class Unreadable:
    """Can be written, and raises ``ValueError`` where it is read."""

    def __reduce__(self):
        return int, ("no number",)

    def __str__(self):
        return "unreadable"
