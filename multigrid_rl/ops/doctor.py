"""The verb ``doctor``: checks the machine, a local Ray session, and a cluster by its address.

Checks of the machine take their inputs as arguments, by default this machine's, and return findings: the found state,
its level, and a suggested change.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.text import Text

from multigrid_rl.files import data_root
from multigrid_rl.rllib.address import ADDRESS, connection_problem
from multigrid_rl.text import ConfigError, expected

Level = Literal["ok", "warning", "problem"]
DISTRIBUTION = "multigrid-rl"
_MIB = 2**20
#: Free shared memory for Ray's batches and weights; a container has 64 MiB by default.
SHM_BYTES = 512 * _MIB
#: Free disk space, recommended and least: a run writes some MiB, Ray's session and its logs some hundred.
DISK_BYTES, DISK_LEAST = 2048 * _MIB, 256 * _MIB
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_LEVEL, _CHECK = 9, 11  # columns


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    level: Level
    found: str
    change: str = ""  # suggested change; empty if none is needed


def doctor(
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to look at, too: auto, host:port or ray://host:port.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON at the end.")] = False,
    patience: Annotated[float, typer.Option(min=1, help="Seconds that Ray has for a task.")] = 90.0,
) -> None:
    """Check installation, GPUs, shared memory, disk and Ray; suggest fixes. Status 1 for a problem."""
    console, findings = Console(highlight=False), []
    for finding in examine(Path.cwd(), address, patience):
        findings.append(finding)
        line = Text(f"{finding.level:<{_LEVEL}}", style=STYLES[finding.level])
        console.print(line.append(f"{finding.check:<{_CHECK}}{finding.found}", style="default"), soft_wrap=True)
        if finding.change:
            console.print(Text(f"{'':{_LEVEL + _CHECK}}-> {finding.change}"), soft_wrap=True)
    counts = Counter(finding.level for finding in findings)
    console.print(f"{counts['ok']} ok, {counts['warning']} warning(s), {counts['problem']} problem(s)")
    if as_json:
        rows = [finding._asdict() for finding in findings]
        typer.echo(json.dumps({"problems": counts["problem"], "warnings": counts["warning"], "findings": rows}))
    if counts["problem"]:
        raise typer.Exit(1)


def examine(folder: Path, address: str | None, patience_s: float) -> Iterator[Finding]:
    """Run all checks and yield their findings.

    Args:
        folder: folder for runs.
        address: Ray cluster to check, too: auto, host:port or ray://host:port.
        patience_s: seconds for Ray to run a task.

    Raises ``ConfigError``: the address has another form.
    """
    match = None if address is None else ADDRESS.fullmatch(address)
    if address is not None and (match is None or (match["port"] and not 1 <= int(match["port"]) <= 65535)):
        raise ConfigError(expected("address", "auto, host:port or ray://host:port", address))
    yield from check_packages()
    yield check_kernels()
    yield check_gpus()
    yield check_shm()
    yield check_disk(folder)
    yield check_ray(patience_s)
    if address is not None:
        yield check_token(address)
        yield from check_cluster(address, folder, patience_s)


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


def check_ray(patience_s: float) -> Finding:
    """Check that Ray starts on this machine and runs a task within ``patience_s`` seconds."""
    has_token = any(name in os.environ for name in _TOKENS)
    answer = _isolated(["local"], patience_s, {} if has_token else {_TOKENS[0]: secrets.token_hex(32)})
    if "error" in answer:
        change = "look into the newest session_*/logs of Ray's temporary folder; RAY_TMPDIR names another one"
        return Finding("ray", "problem", f"no local session: {answer['error']}", change)
    return Finding("ray", "ok", f"{answer['version']} starts here and runs a task")


def check_token(address: str) -> Finding:
    """Check that Ray sends its token: it needs RAY_AUTH_MODE=token, except for this machine's cluster (``auto``)."""
    mode = os.environ.get("RAY_AUTH_MODE")
    file = Path(os.path.expanduser("~"), ".ray", "auth_token")  # noqa: PTH111 - Path.home() fails without one
    has_token = any(os.environ.get(name) for name in _TOKENS) or os.access(file, os.R_OK)
    if mode == "token" and not has_token:
        change = f"put the head's {file.name} into {file.parent}; ray get-auth-token --generate makes one"
        return Finding("token", "problem", "RAY_AUTH_MODE=token, and there is no token", change)
    if mode is None and has_token and address != "auto":
        change = "export RAY_AUTH_MODE=token, if the cluster was started with it"
        return Finding("token", "warning", "there is one, which Ray shows to the cluster of this machine alone", change)
    return Finding("token", "ok", f"RAY_AUTH_MODE={mode or 'not set'}, {'a' if has_token else 'no'} token")


def check_cluster(address: str, folder: Path, patience_s: float) -> list[Finding]:
    """Check that the cluster at ``address`` answers, and that its nodes can take part in runs in ``folder``."""
    change = "ray start --head on one machine, ray start --address=HOST:PORT on the others; then HOST:PORT, or auto"
    unreached = connection_problem(address)
    answer = {"error": unreached} if unreached else _isolated(["cluster", address, str(folder)], patience_s)
    if "error" in answer:
        return [Finding("cluster", "problem", f"{address}: {answer['error']}", change)]
    if "refused" in answer:
        return [Finding("cluster", "problem", answer["refused"], "make it like the driver's machine, or take it out")]
    return [Finding("cluster", "ok", " ".join(line.split())) for line in answer["lines"]]


def _isolated(arguments: list[str], patience_s: float, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run this module in a subprocess, since Ray may hang or crash, and return its result."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        output, errors = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"no answer within {patience_s:g} s"}
    try:
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"the process ended with status {process.returncode}"}
    return result


def run_check(what: str, address: str = "", folder: str = ".") -> dict[str, Any]:
    """Run a task on local Ray (``local``) or the preflight of a ``cluster``, in a subprocess; return the result."""
    import ray  # noqa: PLC0415

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if what == "local":
            ray.init("local", num_cpus=1, include_dashboard=False, **quiet)
            return {"version": ray.get(ray.remote(lambda: ray.__version__).remote())}
        from multigrid_rl.ops.cluster import preflight  # noqa: PLC0415

        ray.init(address, **quiet)
        return {"lines": preflight(Path(folder))}
    except ConfigError as error:
        return {"refused": str(error)}
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        return {"error": next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_check(*sys.argv[1:])) + "\n")
