"""Check that the project exists outside of its checkout, by its papers and a wheel: ``python tools/presence.py``.

The wheel is built, installed with its dependencies into an environment of its own, and trains 1v1 from an empty folder.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PAPERS = (
    "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "SECURITY.md", "docs/versions.md",
    ".github/ISSUE_TEMPLATE/fault.yml", ".github/workflows/ci.yml", ".github/workflows/release.yml",
)  # fmt: skip
#: What https://citation-file-format.github.io asks of version 1.2.0.
CITATION = {"cff-version": str, "title": str, "message": str, "authors": list, "version": str, "license": str}


def version() -> str:
    """Return the version, as ``multigrid_rl/__init__.py`` says it."""
    text = (ROOT / "multigrid_rl" / "__init__.py").read_text(encoding="utf-8")
    return str(re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[0])


def faults(tag: str | None) -> list[str]:
    """Return what is missing, or says another version than the package does."""
    found = [f"{name}: missing" for name in PAPERS if not (ROOT / name).is_file()]
    if found:
        return found
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    found += [f"CITATION.cff: {key} missing" for key, kind in CITATION.items() if not isinstance(cited.get(key), kind)]
    said = {
        "CITATION.cff": cited.get("version"),
        "CHANGELOG.md": re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0],
        "the tag": version() if tag is None else tag.removeprefix("v"),
    }
    return found + [
        f"{name}: expected version {version()}, got {got}" for name, got in said.items() if got != version()
    ]


def build(folder: Path) -> Path:
    """Build the wheel in ``folder``."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob(f"multigrid_rl-{version()}-*.whl"))


def train(wheel: Path, folder: Path) -> str:
    """Install the wheel in an environment below ``folder`` and train 1v1 there; returns the verdict's line."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, ROOT / "tools" / "install.py", "torch", str(wheel)], check=True)
    command = [str(python.with_name("multigrid-rl")), "train", "scenario=1v1", "run_dir=mine"]
    command += ["train.threads=1"]  # the forms for two are compiled until after the run has ended
    empty = folder / "empty"
    empty.mkdir()
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if "HELD" in line)


def main() -> None:
    """Check, and exit with 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, metavar="FOLDER", help="keep the wheel there")
    parser.add_argument("--tag", help="the release's tag, which the version must be")
    typed = parser.parse_args()
    if found := faults(typed.tag):
        sys.exit("\n".join(found))
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build((typed.wheel or Path(temporary)).absolute())
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        verdict = train(wheel, Path(temporary))
    print(verdict)
    if verdict.startswith("NOT"):
        sys.exit(1)


if __name__ == "__main__":
    main()
