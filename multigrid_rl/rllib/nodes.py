"""What is installed on a node of a cluster, and whether one answers at an address. Imports no Ray."""

import hashlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from multigrid_rl.config.compose import data_root
from multigrid_rl.runs.folder import versions
from multigrid_rl.text import expected

#: Seconds until a host that does not answer counts as unreachable.
CONNECT_S = 5.0
#: Address of a Ray cluster.
ADDRESS = re.compile(r"auto|(ray://)?(?P<host>\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def installed() -> dict[str, str]:
    """Versions of what decides a run, and the hash of this package's own files and configurations, in this process."""
    digest = hashlib.sha256()  # two checkouts of one version may differ
    for root, ending in ((Path(__file__).parents[1], "*.py"), (data_root() / "configs", "*.yaml")):
        for source in sorted(root.rglob(ending)):
            digest.update(f"{source.relative_to(root).as_posix()}\0".encode() + source.read_bytes())
    return {**versions(), "multigrid-rl sources": digest.hexdigest()[:12]}


def differences(versions: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """List packages whose versions differ from the driver's; CPU and GPU builds of a release count as the same."""
    return [
        expected(name, version, versions.get(name, "none"))
        for name, version in own.items()
        if release(versions.get(name, "")) != release(version)
    ]


def release(version: str) -> str:
    """Return a version without its build, such as +cu121."""
    return version.partition("+")[0]


def unreachable(address: str) -> str:
    """Return why nothing answers at a cluster's address, within seconds, or nothing: Ray itself tries for minutes."""
    match = ADDRESS.fullmatch(address)
    if match is None or match["port"] is None:
        return ""  # auto: Ray knows where
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:  # a port beyond 65535
        return f"nothing answers there: {getattr(error, 'strerror', None) or error}"
    return ""
