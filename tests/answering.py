"""Servers of tests, each in a thread."""

import threading
from contextlib import contextmanager


@contextmanager
def answering(server, listening):
    """Let a server answer at a socket for a block; yields its port."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
