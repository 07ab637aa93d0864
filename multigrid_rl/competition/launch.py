"""Sets limits on its process, then executes an external agent.

Run as a file: ``launch.py AS FSIZE CPU REFEREE COMMAND...``. It is a separate program, as code between fork and exec
(``preexec_fn``) may hang in a process with threads, such as torch's in the referee, and as a limit set from outside
comes after the start.
"""

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys

#: Options of ``prctl``: signal at the parent's end; no new rights by executing a program; filter of system calls.
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_SECCOMP_MODE_FILTER = 2
#: Number of each processor architecture in ``linux/audit.h``.
_PROCESSORS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: Forbidden calls, for memory that no process owns and nobody can count, and for calls past the filter:
#: ``memfd_create``, ``memfd_secret``, ``shmget``, ``msgget``, ``io_uring_setup``.
_REFUSED = {"x86_64": (319, 447, 29, 68, 425), "aarch64": (279, 447, 194, 186, 425)}
#: Calls without effect: ``setsid`` and ``setpgid``, so that one signal stops all processes of an idle agent.
_IDLE = {"x86_64": (112, 109), "aarch64": (157, 154)}
#: ``socket`` and ``socketpair``: only Unix sockets, and netlink, which bubblewrap needs for the network; and
#: ``setsockopt``, which could enlarge their buffers.
_SOCKETS, _SIZES = {"x86_64": (41, 53), "aarch64": (198, 199)}, {"x86_64": 54, "aarch64": 208}
_FAMILIES, _BUFFERS = (1, 16), (7, 8)
_ALLOWED, _ANSWER, _NOT_PERMITTED, _NO_CONNECTION = 0x7FFF0000, 0x00050000, 1, 111
_X32 = 0x3FFFFFFF  # mask without the bit of x86_64's x32 calls
_OPEN_FILES = 256


def main() -> None:
    """Limit address space (bytes), size of files (bytes) and processor time (seconds), then run the command."""
    memory, size, seconds, referee = map(int, sys.argv[1:5])
    command = sys.argv[5:]
    die_with_parent(referee)
    refuse_calls(contained=command[0] == "bwrap")
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,  # buffers of pipes and sockets are memory, too
    }
    for kind, bound in bounds.items():
        # Refused where the limit is stricter already, or missing, as macOS's for the address space.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (bound, bound))
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)  # this interpreter ignores them; shell tools need them
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{command[0]}: {getattr(error, 'strerror', error)}\n")
        sys.exit(127)  # a shell's status for a command that it cannot run


def set_option(option: int, value: int, operand: object = 0) -> None:
    """Set an option of this process by ``prctl``; without effect on other systems than Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, operand, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let this process be killed when its parent dies, only on Linux; end it if that has died before."""
    set_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def refuse_calls(*, contained: bool) -> None:
    """Forbid calls of this process and its children on known processors; also sockets if ``contained``."""
    if (kind := os.uname().machine) not in _PROCESSORS:
        return
    # A program for the kernel: code, jump if equal, jump if not, operand. Loads are of ``struct seccomp_data``.
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, _PROCESSORS[kind]), _answer(_NOT_PERMITTED)]
    program += [(0x20, 0, 0, 0), (0x54, 0, 0, _X32)]
    answers = dict.fromkeys(_REFUSED[kind], _NOT_PERMITTED) | dict.fromkeys(_IDLE[kind], 0)
    for call, error in answers.items():
        program += [(0x15, 0, 1, call), _answer(error)]
    if contained:
        # The call's arguments begin at byte 16, eight bytes each.
        families = [(0x15, len(_FAMILIES) - k, 0, family) for k, family in enumerate(_FAMILIES)]
        checks = [(0x20, 0, 0, 16), *families, _answer(_NO_CONNECTION), (0x06, 0, 0, _ALLOWED)]
        for call in _SOCKETS[kind]:
            program += [(0x15, 0, len(checks), call), *checks]
        buffers = [(0x15, len(_BUFFERS) - k, 0, option) for k, option in enumerate(_BUFFERS)]
        program += [(0x15, 0, len(buffers) + 3, _SIZES[kind]), (0x20, 0, 0, 32), *buffers]
        program += [(0x06, 0, 0, _ALLOWED), _answer(0)]
    program += [(0x06, 0, 0, _ALLOWED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_program = struct.pack("HP", len(program), ctypes.addressof(code))
    set_option(_PR_SET_NO_NEW_PRIVS, 1)
    set_option(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(filter_program))


def _answer(error: int) -> tuple[int, int, int, int]:
    return 0x06, 0, 0, _ANSWER | error


if __name__ == "__main__":
    main()
