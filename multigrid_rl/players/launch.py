"""Sets limits on itself, then becomes an external agent. Run as a file: ``launch.py AS FSIZE CPU REFEREE COMMAND...``.

A program of its own, for two reasons. Code between fork and exec (``preexec_fn``) may hang in a process that has
threads, and the referee has torch's. And a limit set from outside, after the start, leaves a moment without it.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

#: The signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Limit address space (bytes), size of files (bytes) and processor time (seconds), then run the command."""
    memory, size, seconds, referee = map(int, sys.argv[1:5])
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != referee:
            sys.exit(1)  # it was killed before this was said
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        # Refused where it is stricter already, or where a system has no such limit, as macOS for the address space.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (bound, bound))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # this interpreter ignores them; a shell's tools count on them
    command = sys.argv[5:]
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{command[0]}: {getattr(error, 'strerror', error)}\n")
        sys.exit(127)  # what a shell says for a command that it cannot run


if __name__ == "__main__":
    main()
