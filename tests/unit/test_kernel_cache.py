"""Machine code that an earlier process left on disk: it must not outlive its sources, nor end a program if damaged."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from numba.core.caching import CompileResultCacheImpl, NullCache, UserProvidedCacheLocator

import multigrid_rl
from doc_blocks import loaded
from multigrid_rl import jit

#: Reads the first world's red key and what picking it up pays; the second line counts kernels loaded from disk.
PROGRAM = """
import numpy as np
from multigrid_rl.types import GameSpec
from multigrid_rl.world import constants as c, kernels
from multigrid_rl.world.engine import World

world = World(GameSpec(blue=0, red=1, random_keys=False, view_size=3), 1)
key = int(np.flatnonzero(world.state.cells[0] == c.KEY)[0])
world.step(np.full((1, 1), c.DONE, np.int8))
print(*divmod(key, c.HEIGHT), int(world.state.clock[0]))
print(sum(kernels.step_games.stats.cache_hits.values()))
"""


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, with any machine code beside it so that the first process need not compile."""
    package = Path(multigrid_rl.__file__).parent
    unfinished = shutil.ignore_patterns("*.pyc*", "*.tmp.*")  # files that another process is about to rename
    shutil.copytree(package, tmp_path / "multigrid_rl", ignore=unfinished)
    return tmp_path


def run(folder: Path) -> tuple[str, int]:
    """Play one step in a new process that imports the copy; returns what it saw and its cache hits."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    how = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=False, **how)
    assert done.returncode == 0, done.stderr
    saw, hits = done.stdout.splitlines()
    return saw, int(hits)


@pytest.mark.long
def test_kernels_are_cached_until_imported_constant_changes(copy):
    saw, _ = run(copy)
    assert saw == "7 4 1"
    saw, hits = run(copy)
    assert (saw, hits) == ("7 4 1", 1)  # the second process starts from disk
    constants = copy / "multigrid_rl" / "world" / "constants.py"
    text = constants.read_text()
    old = "FIXED_KEY: Final = (cell_index(7, 4), cell_index(8, 3))"
    assert old in text
    constants.write_text(text.replace(old, "FIXED_KEY: Final = (cell_index(6, 5), cell_index(8, 3))"))
    saw, hits = run(copy)
    assert (saw, hits) == ("6 5 1", 0)


@pytest.fixture
def source(tmp_path):
    """A module with one small kernel, whose machine code is kept beside it."""
    path = tmp_path / "doubling.py"
    path.write_text("from multigrid_rl.jit import kernel\n\n\n@kernel\ndef twice(x):\n    return 2 * x\n")
    return path


def started(source: Path):
    """The kernel as a process that just started has it."""
    return loaded(source).twice


def works(twice) -> int:
    """The kernel computes; returns how often its machine code came from disk."""
    assert twice(21) == 42
    return sum(twice.stats.cache_hits.values())


def kept(source: Path) -> Path:
    (file,) = source.parent.rglob("*.nbc")
    return file


DAMAGE = {
    "empty": lambda data: b"",
    "zeros after a power cut": lambda data: bytes(len(data)),
    "cut off": lambda data: data[: len(data) // 2],
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "garbage": lambda data: b"\x80\x04not what it was",
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_recompiled_and_replaced(source, damage):
    assert works(started(source)) == 0
    assert works(started(source)) == 1
    whole = kept(source).read_bytes()
    kept(source).write_bytes(damage(whole))
    assert works(started(source)) == 0
    assert works(started(source)) == 1


def test_compiles_without_file_access(source, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(jit._KernelFile, "_open_for_write", full)
    assert works(started(source)) == 0
    monkeypatch.undo()
    works(started(source))
    file = kept(source)
    file.unlink()
    file.mkdir()
    assert works(started(source)) == 0


def test_machine_code_of_other_sources_is_replaced(source, monkeypatch):
    works(started(source))
    monkeypatch.setattr(jit, "_sources_digest", lambda: "of an older version")
    assert works(started(source)) == 0
    assert works(started(source)) == 1
    assert kept(source)


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("world/kernels.py", True),
        ("learn/advantages.py", True),  # kernels of every room
        ("jit.py", True),
        ("world/constants.py", True),
        ("world/state.py", True),
        ("text.py", False),
    ],
)
def test_machine_code_is_as_old_as_all_sources_of_kernels(tmp_path, monkeypatch, file, stale):
    package = Path(multigrid_rl.__file__).parent
    for source in package.rglob("*.py"):
        target = tmp_path / source.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "jit.py"))
    before = jit._sources_digest.__wrapped__()
    assert jit._sources_digest.__wrapped__() == before
    (tmp_path / file).write_text((tmp_path / file).read_text() + "\n# changed\n")
    assert (jit._sources_digest.__wrapped__() != before) == stale


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither the installation nor the home can be written; returns the temporary folder."""
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [UserProvidedCacheLocator])
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_falls_back_to_temporary_folder_for_kernels(source, nowhere):
    assert works(started(source)) == 0
    (own,) = nowhere.iterdir()
    assert own in kept(source).parents
    assert own.stat().st_mode & 0o777 == 0o700
    assert works(started(source)) == 1
    assert os.environ["NUMBA_CACHE_DIR"] == str(own)  # for what else keeps kernels, and for env runners


@pytest.mark.parametrize("how", ["others may write", "a link", "a file", "no temporary folder"])
def test_never_reads_machine_code_writable_by_others(source, nowhere, how):
    own = jit.temporary_folder()
    own.rmdir()
    if how == "others may write":
        own.mkdir()
        own.chmod(0o777)
    elif how == "a link":
        (nowhere / "elsewhere").mkdir(mode=0o700)
        own.symlink_to(nowhere / "elsewhere")
    elif how == "a file":
        own.write_text("")
    else:
        nowhere.rmdir()
    twice = started(source)
    assert isinstance(twice._cache, NullCache)
    assert works(twice) == 0
    assert list(source.parent.rglob("*.nbc")) == []
