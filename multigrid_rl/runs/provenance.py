"""Provenance of a run's numbers: command, commit, versions, machine, user modules."""

import hashlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multigrid_rl.config.recipes import RESUMABLE
from multigrid_rl.config.schema import RunConfig, to_yaml
from multigrid_rl.cores import available_cpus
from multigrid_rl.files import data_root
from multigrid_rl.tables import FACTS, find
from multigrid_rl.text import NAME, expected
from multigrid_rl.trust import CODE

PACKAGES = ("multigrid-rl", "ray", "torch", "numpy", "numba", "gymnasium", "pettingzoo", "multigrid")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine a run."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def local_versions() -> dict[str, str]:
    """Return versions of these packages, and the hash of this package's files and configurations on this machine."""
    digest = hashlib.sha256()  # two checkouts of one version may differ
    for root, ending in ((Path(__file__).parents[1], "*.py"), (data_root() / "configs", "*.yaml")):
        for source in sorted(root.rglob(ending)):
            digest.update(f"{source.relative_to(root).as_posix()}\0".encode() + source.read_bytes())
    return {**versions(), "multigrid-rl sources": digest.hexdigest()[:12]}


def version_differences(remote: Mapping[str, str], local: Mapping[str, str]) -> list[str]:
    """List packages whose ``remote`` versions differ from ``local``; CPU and GPU builds of a release are equal."""
    return [
        expected(name, version, remote.get(name, "none"))
        for name, version in local.items()
        if release(remote.get(name, "")) != release(version)
    ]


def release(version: str) -> str:
    """Return a version without the name of its build."""
    return version.partition("+")[0]


def git_commit() -> str | None:
    """Return the commit of the project's checkout, ``+changes`` if files differ from it; ``None`` outside of one."""
    git, root = shutil.which("git"), data_root()
    if git is None or not (root / ".git").exists():
        return None
    commands = (("rev-parse", "HEAD"), ("status", "--porcelain"))
    head, dirty = (
        subprocess.run([git, "-C", str(root), *args], capture_output=True, text=True, check=False) for args in commands
    )
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "") if head.returncode == 0 else None


def circumstances() -> dict[str, Any]:
    """Return command, time, commit, versions and machine of this process."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name.replace("__main__.py", NAME), *sys.argv[1:]]),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "versions": versions(),
        "machine": {"system": platform.platform(), "processor": cpu_model(), "cores": available_cpus()},
    }


def cpu_model() -> str:
    """Return the name of the processor: on another one, last digits of sums differ, and so do runs."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def facts_of(config: RunConfig) -> dict[str, Any]:
    """Return add-ons' facts on a run's inputs, by the key that names them. Raises ``ConfigError``: one is damaged."""
    return {key: find(FACTS, key)(config) for key in FACTS if getattr(config, key) is not None}


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the sha256 of ``config.yaml``'s values, without those that may change when a run is resumed."""
    values = {key: value for key, value in config.items() if key != "cluster"}
    values["train"] = {key: value for key, value in values["train"].items() if f"train.{key}" not in RESUMABLE}
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def user_modules(config: RunConfig) -> dict[str, dict[str, str]]:
    """Return, as ``modules``, the sha256 of the file of every user module that a run imports, if any."""
    names = sorted({name.partition(":")[0] for name in CODE.findall(to_yaml(config))})
    files = {name: Path(getattr(sys.modules.get(name), "__file__", None) or "") for name in names}
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file.is_file()}
    return {"modules": hashes} if hashes else {}
