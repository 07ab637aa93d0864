"""Addresses of Ray clusters: their form, and connection checks."""

import re
import socket

#: Address of a Ray cluster.
ADDRESS = re.compile(r"auto|(ray://)?(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
#: Seconds until a host that does not answer counts as unreachable.
CONNECT_S = 5.0


def connection_problem(address: str) -> str:
    """Return why a cluster's address does not answer, or "", within seconds: Ray itself tries for minutes."""
    match = ADDRESS.fullmatch(address)
    if match is None or match["port"] is None:
        return ""  # auto: Ray knows where
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:  # a port beyond 65535
        return f"nothing answers there: {getattr(error, 'strerror', None) or error}"
    return ""
