"""Checks of a machine's requirements for training; nothing here starts Ray.

Each check takes its inputs as arguments, by default this machine's, and returns findings: the found state, its level,
and a suggested change.
"""

import shutil
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from multigrid_rl.files import data_root
from multigrid_rl.text import expected

Level = Literal["ok", "warning", "problem"]
DISTRIBUTION = "multigrid-rl"
_MIB = 2**20
#: Free shared memory for Ray's batches and weights; a container has 64 MiB by default.
SHM_BYTES = 512 * _MIB
#: Free disk space, recommended and least: a run writes some MiB, Ray's session and its logs some hundred.
DISK_BYTES, DISK_LEAST = 2048 * _MIB, 256 * _MIB


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    level: Level
    found: str
    change: str = ""  # suggested change; empty if none is needed


def check_packages(needed: Iterable[str] | None = None, constraints: Path | None = None) -> list[Finding]:
    """Check that all packages are installed in the required versions, and in the tested ones.

    Args:
        needed: requirements as in ``pyproject.toml``; by default those of the installed package.
        constraints: file of exact versions; by default the project's.
    """
    pins = tested_versions(data_root() / "constraints.txt" if constraints is None else constraints)
    findings, untested, count = [], [], 0
    for requirement in map(Requirement, requires(DISTRIBUTION) or () if needed is None else needed):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        name = requirement.name
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "none"
        if found == "none" or not requirement.specifier.contains(found, prereleases=True):
            message = expected(name, str(requirement.specifier) or "any version", found)
            findings.append(Finding("packages", "problem", message, f"pip install '{requirement}'"))
        elif (pin := pins.get(canonicalize_name(name), found)).partition("+")[0] != found.partition("+")[0]:
            untested.append(f"{name} {found} (tested is {pin})")
    if untested:
        change = "pip install --constraint constraints.txt -e . puts the tested versions there"
        findings.append(Finding("packages", "warning", ", ".join(untested), change))
    return findings or [Finding("packages", "ok", f"all {count} are there, in the versions that were tested")]


def tested_versions(constraints: Path) -> dict[str, str]:
    """Return the exact versions for this Python, by canonical name; empty if the file does not exist."""
    try:
        text = constraints.read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    pins = [Requirement(line) for line in lines if line]
    applicable = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in applicable}


def check_kernels(folder: Path | None = None) -> Finding:
    """Check that compiled kernels can be saved: without a folder for them every start takes most of a minute.

    ``folder``: folder of kernels; by default the one that this process uses.
    """
    # Imported here: numba takes half a second.
    from multigrid_rl import jit  # noqa: PLC0415
    from multigrid_rl.world import kernels  # noqa: PLC0415

    change = "set NUMBA_CACHE_DIR to a folder that can be written, on a disk with room"
    cached: Any = kernels.step_games
    folder = folder or cached._cache.cache_path
    if folder is None:
        message = "neither the installation, nor the home, nor the temporary folder can be written"
        return Finding("kernels", "problem", message, change)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_MIB))  # a full disk still takes empty files
    except OSError as error:
        return Finding("kernels", "problem", f"compiled kernels cannot be kept: {error}", change)
    if Path(tempfile.gettempdir(), jit.TEMPORARY) in folder.parents:
        message = f"kept in {folder}, as neither the installation nor the home can be written"
        return Finding("kernels", "warning", message, f"{change}: this one is emptied")
    return Finding("kernels", "ok", f"kept in {folder}")


def check_gpus(build: str | None = None, cuda: str | None = None, gpus: int | None = None) -> Finding:
    """Check that torch sees a GPU if it was built for CUDA.

    Args:
        build: version of torch; ``None``: the installed one.
        cuda: version of CUDA that torch was built for; ``None``: none.
        gpus: number of GPUs that torch sees.
    """
    if build is None or gpus is None:
        import torch  # noqa: PLC0415 - takes a second

        build, cuda, gpus = str(torch.__version__), torch.version.cuda, torch.cuda.device_count()
    if gpus:
        return Finding("gpus", "ok", f"torch {build} sees {gpus}; cluster.gpus_per_learner=1 puts a learner on one")
    if cuda is None:
        return Finding("gpus", "ok", f"torch {build} is built without CUDA: networks are computed on CPUs")
    change = "nvidia-smi tells whether a driver is there, and the CUDA that it has; docs/setup.md names other builds"
    return Finding("gpus", "warning", f"torch {build} is built for CUDA {cuda} and sees no GPU", change)


def check_shm(folder: Path = Path("/dev/shm"), enough: int = SHM_BYTES) -> Finding:
    """Check that shared memory holds Ray's object store; ``enough`` in bytes."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Finding("shm", "ok", f"{folder} is not there: Ray uses its temporary folder")
    message = f"{folder} has {free / _MIB:,.0f} MiB free"
    if free >= enough:
        return Finding("shm", "ok", message)
    change = (
        "give the container more: docker run --shm-size=2g, shm_size: 2gb in compose, an emptyDir with medium: Memory "
        "in Kubernetes; without it Ray keeps objects on disk"
    )
    return Finding("shm", "warning", f"{message}, Ray wants {enough / _MIB:,.0f}", change)


def check_disk(folder: Path) -> Finding:
    """Check that runs and Ray's session fit on the disk of ``folder``."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", "problem", f"{folder}: {error.strerror}", "start where runs can be written")
    message = f"{free / _MIB:,.0f} MiB free in {folder}"
    if free >= DISK_BYTES:
        return Finding("disk", "ok", message)
    enough, least = DISK_BYTES / _MIB, DISK_LEAST / _MIB
    change = f"make room: {enough:,.0f} MiB are enough, a run with less than {least:,.0f} will break off"
    return Finding("disk", "warning" if free >= DISK_LEAST else "problem", message, change)
