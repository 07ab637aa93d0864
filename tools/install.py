"""Fill this environment with the versions of constraints.txt: ``python tools/install.py WHAT...``.

By uv, which takes seconds where pip takes minutes, with the settings of pip; by pip where uv cannot be had or fails, or
with ``INSTALLER=pip``. Needs nothing but the environment's own Python and pip.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ["--constraint", str(ROOT / "constraints.txt")]
PIP = [sys.executable, "-m", "pip"]
#: uv's variables by the settings of pip that they stand for; what divides several values.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
#: Settings that change nothing of what is installed.
IDLE = {
    "break-system-packages", "cache-dir", "disable-pip-version-check", "no-cache-dir", "no-color", "no-input",
    "no-warn-script-location", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "verbose",
}  # fmt: skip
#: Versions of Python that some packages have no wheels for, and what is missing there.
LACKING = {
    (3, 10): "no OpenSpiel, which asks for 3.11; other versions than those that were tested",
    (3, 14): "no Box2D (lunarlander, bipedalwalker), which has no wheel; pygame-ce in place of pygame",
}


def pip_settings() -> dict[str, str]:
    """Return the settings of pip, by its names: of its files for all verbs, then for ``install``, then of variables."""
    listing = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    values = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing:
            key, _, value = line.partition("=")
            if key.startswith(section):
                values[key.removeprefix(section)] = str(ast.literal_eval(value))
    return values


def uv(settings: dict[str, str]) -> dict[str, str] | None:
    """Put uv into this environment; returns its variables, ``None`` where pip must do its work."""
    if unknown := settings.keys() - VARIABLES - IDLE:
        print(f"pip installs, as uv does not know its setting {', '.join(sorted(unknown))}")
        return None
    if os.environ.get("INSTALLER") == "pip":
        return None
    quiet = ["--quiet", "--disable-pip-version-check"]
    if subprocess.run([*PIP, "install", *quiet, *CONSTRAINTS, "uv"], check=False).returncode:
        return None
    given = {name: between.join(settings[key].split()) for key, (name, between) in VARIABLES.items() if key in settings}
    # As pip: the newest version of all indexes, and not what the first of them has.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **given, **os.environ}


def reached(index: str) -> bool:
    """Return whether there is an answer from an index: uv ends where there is none, and pip tries for a minute."""
    try:
        urlopen(index, timeout=10).close()
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def install(what: list[str], variables: dict[str, str] | None) -> str:
    """Install ``what``; returns by what. Raises ``CalledProcessError``."""
    if variables is not None:
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        command = ["uv", "pip", "install", *quiet, "--python", sys.executable, *CONSTRAINTS, *what]
        if not subprocess.run([sys.executable, "-m", *command], env=variables, check=False).returncode:
            return "uv"
        print("uv could not: pip tries")
    subprocess.run([*PIP, "install", "--quiet", "--disable-pip-version-check", *CONSTRAINTS, *what], check=True)
    return "pip"


def main() -> None:
    """Install what the command line names, and tell its size and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra-index-url", metavar="URL", help="another index to look in, for torch's build")
    parser.add_argument("what", nargs="+", help="requirements; a folder with its extras is installed editable")
    typed = parser.parse_args()
    began, version = time.monotonic(), sys.version_info[:2]
    what = [part for one in typed.what for part in (["--editable", one] if one.startswith(".") else [one])]
    if index := typed.extra_index_url:
        if reached(index):
            what += ["--extra-index-url", index]
        else:
            print(f"{index} cannot be reached: the usual indexes' build of torch is taken")
    variables = uv(pip_settings())
    try:
        by = install(what, variables)
        if version >= (3, 14) and any(one.startswith(".") for one in typed.what):
            # It asks for pygame by name, and its own game runs with pygame-ce.
            install(["--no-deps", "multigrid", "aenum"], variables)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    if version in LACKING:
        print(f"Python {version[0]}.{version[1]}: {LACKING[version]}")
    size = sum(file.lstat().st_size for file in Path(sys.prefix).rglob("*") if file.is_file())
    count = len({one.name for one in distributions()})
    print(f"{count} packages, {size / 1e9:.2f} GB, in {time.monotonic() - began:.0f} s by {by}")


if __name__ == "__main__":
    main()
