"""The end of a run of tests: what was skipped here, how often, and what would enable it."""

import re
import traceback
from collections import Counter
from importlib.util import find_spec

import pytest

from tools.house import ADDONS

#: What would enable it, by what the reason of a skip says.
ENABLED_BY = {
    "bubblewrap": "apt-get install bubblewrap",
    "Chromium": "apt-get install chromium",
    "zsh": "apt-get install zsh",
    "Postgres": "apt-get install postgresql",
    "systemd": "apt-get install systemd",
    "psycopg": "make setup EXTRAS=postgres",
    "extra serve": "make setup EXTRAS=serve",
    "onnx": "make setup EXTRAS=onnx",
    "minari": "make setup EXTRAS=minari",
    "mlflow": "make setup EXTRAS=mlflow",
    "wandb": "make setup EXTRAS=wandb",
    "Box2D|pyspiel": "make setup EXTRAS=control,games with Python 3.11 to 3.13",
    "mujoco": "make setup EXTRAS=control",
    "mpe2|magent2|pettingzoo|module": "make setup EXTRAS=games",
    "axe|nbclient|nbformat|ipykernel": "make setup EXTRAS=dev",
    "tomllib|Python": "make test PYTHON=python3.11 VENV=.venv-3.11",
    "GPU": "a GPU and make setup TORCH=gpu",
    "one CPU|one thread": "two cores",
    "Linux|process table|kernel tells": "Linux",
    "kernels are not kept": "a checkout that may be written to",
    "left out": "a checkout with all add-ons",
}


#: What a test says that fails without a sub-package, or without its command.
LEFT_OUT = re.compile(r"No module named 'multigrid_rl\.(\w+)|No such command '(\w+)'")
#: Packages that have no wheel for every Python that we take, and what a test says that fails without one.
WITHOUT = {"Box2D": "No module named 'Box2D'|without Box2D", "pyspiel": "No module named 'pyspiel'"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip what fails since such a package is not installed, or since a checkout leaves an add-on out."""
    try:
        return (yield)
    except Exception as error:
        from multigrid_rl import tables  # noqa: PLC0415 - after conftest has set the environment

        for room, verb in LEFT_OUT.findall(str(error)):
            lacks_room = room in ADDONS and find_spec(f"multigrid_rl.{room}") is None
            if lacks_room or (verb in tables.VERBS and not tables.has(tables.VERBS, verb)):
                pytest.skip(f"{room or verb} is left out of this checkout")
        for package, said in WITHOUT.items():
            if find_spec(package) is None and re.search(said, "".join(traceback.format_exception(error))):
                pytest.skip(f"{package} has no wheel for this Python, or is not installed")
        raise


def enabled_by(reason: str) -> str | None:
    """The command, or what the machine would need; None where nobody said."""
    return next((what for says, what in ENABLED_BY.items() if re.search(says, reason)), None)


def summary(reasons: list[str]) -> list[str]:
    """A line for each reason, the most frequent first."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons).most_common()
    return [f"{count:5} {reason}: {enabled_by(reason) or 'nothing is known to enable it'}" for reason, count in counted]


def pytest_terminal_summary(terminalreporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if not hasattr(report, "wasxfail")]
    if skipped:
        terminalreporter.write_sep("=", "skipped here, and what would enable it")
        for line in summary([report.longrepr[2] for report in skipped]):
            terminalreporter.write_line(line)
