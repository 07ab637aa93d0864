"""The verb ``doctor``: checks the machine, a local Ray session, and a cluster by its address."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from multigrid_rl.ops import machine
from multigrid_rl.ops.machine import Finding
from multigrid_rl.rllib.address import ADDRESS, connection_problem
from multigrid_rl.text import ConfigError, expected

_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_LEVEL, _CHECK = 9, 11  # columns


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
    yield from machine.check_packages()
    yield machine.check_kernels()
    yield machine.check_gpus()
    yield machine.check_shm()
    yield machine.check_disk(folder)
    yield check_ray(patience_s)
    if address is not None:
        yield check_token(address)
        yield from check_cluster(address, folder, patience_s)


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
