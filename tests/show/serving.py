"""Serves pages to tests."""

import threading
from contextlib import contextmanager

from multigrid_rl.show.live import listen, server_of


@contextmanager
def served(app):
    """Serve an application in a thread; yields its port."""
    listening = listen(0)
    server = server_of(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
