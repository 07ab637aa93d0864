"""Machine code on disk: it must not outlive its sources, end a program if damaged, nor be compiled twice."""

import collections
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numba
import pytest
from numba.core.caching import CompileResultCacheImpl, NullCache, UserProvidedCacheLocator

import multigrid_rl
from doc_blocks import loaded
from multigrid_rl import jit
from multigrid_rl.config.compose import compose
from multigrid_rl.fast import threads as cores
from multigrid_rl.fast.threads import ThreadTuner, idle_seconds
from multigrid_rl.text import ConfigError
from multigrid_rl.training import stages as settings
from multigrid_rl.training.stages import thread_tuner


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


# --- a first start compiles by two processes, each form once; later ones start none


ROOT = Path(__file__).parents[2]
SMALL = ["scenario=1v1", "train.until=8192", "train.num_envs=64", "train.num_steps=16", "train.minibatch_size=512"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The package without machine code, as a clone has it."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "multigrid_rl", folder / "multigrid_rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("configs", "checkpoints"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def trained(checkout: Path, name: str) -> list[dict]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "multigrid_rl.cli.main", "train", *SMALL, f"run_dir={name}"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (checkout / name / "metrics.jsonl").read_text().splitlines()]
    told = ("learner", "entropy", "approx", "episodes")
    return [{k: v for k, v in row.items() if k.startswith(told)} for row in rows]


def code_files(checkout: Path) -> list[str]:
    return [file.name for file in checkout.rglob("*.nbc")]


@pytest.mark.long
def test_first_start_equals_the_second_and_compiles_no_large_form_twice(checkout):
    first = trained(checkout, "first")
    serial = [name for name in code_files(checkout) if "_beside" not in name]
    assert trained(checkout, "second") == first
    assert sorted(name for name in code_files(checkout) if "_beside" not in name) == sorted(serial)
    forms = collections.Counter(name.split("-")[0] for name in serial)
    large = ["towers.both_forward", "towers.policy_forward", "descent._descend", "compiled_match._play"]
    assert [forms[name] for name in (*large, "kernels.step_games")] == [1] * 5


# --- threads: never results, only how long they take, hang on them


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(settings, "available_cpus", lambda: 2)
    monkeypatch.setattr(settings, "cpu_quota", lambda: None)
    monkeypatch.setattr(cores, "most_threads", lambda: 2)
    monkeypatch.setattr(cores, "use_threads", lambda count: None)
    play.now = time.monotonic() + 1000.0


def team(*overrides: str) -> ThreadTuner:
    return thread_tuner(compose(["scenario=1v1", "train.threads=auto", *overrides]))


def test_idle_time_counts_requested_cores(tmp_path):
    rows = ["cpu  9 9 9 9 9", "cpu0 1 2 3 100 50 0 0", "cpu1 1 2 3 700 0 0 0", "cpu10 1 1 1 900 0 0", "intr 5"]
    (tmp_path / "stat").write_text("\n".join(rows) + "\n")
    ticks = cores.os.sysconf("SC_CLK_TCK")
    assert idle_seconds({0}, tmp_path) == 150 / ticks
    assert idle_seconds({0, 10}, tmp_path) == 1050 / ticks
    assert idle_seconds({0}, tmp_path / "none") != idle_seconds({0}, tmp_path / "none")  # nan


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        ([], 2),
        (["train.threads=1"], 1),
        (["train.threads=2"], 2),
        (["cluster.num_env_runners=1"], 1),
        (["cluster.num_learners=2"], 1),
    ],
)
def test_remote_runners_and_learners_keep_their_cores(overrides, most):
    assert team(*overrides).limit == most


def play(ours: ThreadTuner, seconds: float, free: float = 2.0, iterations: int = 1) -> None:
    for _ in range(iterations):
        play.now += seconds
        ours._adjust(seconds, free, play.now)


#: Iterations of one length: their seconds, the free cores meanwhile, how many; then the number of threads.
STORIES = {
    "how long it takes one is not known yet": ([(0.04, 2.0, 2)], 1),
    "two are faster": ([(0.04, 2.0, 3), (0.03, 2.0, 100)], 2),
    "busy cores are left to others": ([(0.04, 1.6, 50)], 1),
    "it is not known how many are free": ([(0.04, float("nan"), 50)], 1),
    "two are far slower": ([(0.04, 2.0, 3), (0.2, 2.0, 2)], 1),
    "two are a little slower": ([(0.04, 2.0, 3), (0.041, 2.0, 3)], 1),
    "a checkpoint was written": ([(0.04, 2.0, 3), (0.03, 2.0, 5), (0.5, 2.0, 1), (0.03, 2.0, 1)], 2),
}


@pytest.mark.parametrize(("told", "threads"), STORIES.values(), ids=STORIES)
def test_second_thread_is_used_where_it_is_free_and_faster(told, threads):
    ours = team()
    for seconds, free, iterations in told:
        play(ours, seconds, free, iterations)
    assert ours.count == threads


def test_retries_grow_rarer_on_busy_machine():
    ours, lost, played = team(), 0.0, 0.0
    for _ in range(3000):
        seconds = 0.2 if ours.count == 2 else 0.04
        lost, played = lost + seconds - 0.04, played + seconds
        play(ours, seconds)
    assert lost < 0.03 * played


def test_fixed_thread_count_is_not_measured():
    ours = team("train.threads=2")
    ours.update()
    assert (ours.count, ours.describe()) == (2, "2 thread(s)")


@pytest.mark.parametrize("bad", ["0", "many"])
def test_rejects_invalid_thread_setting(bad):
    with pytest.raises(ConfigError, match=r"^train\.threads: expected 'auto', 1 or 2"):
        compose(["scenario=1v1", f"train.threads={bad}"])


def test_one_thread_without_openmp(monkeypatch):
    jit.most_threads.cache_clear()
    monkeypatch.setattr(jit, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert jit.most_threads() == 1
    jit.most_threads.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(jit.most_threads() < 2, reason="one CPU, or no OpenMP")
def test_leaves_torch_threads_unchanged():
    # In a process of its own: threads are launched once.
    code = (
        "import torch; torch.set_num_threads(1); from multigrid_rl.fast.threads import set_threads; "
        "set_threads(2); print(torch.get_num_threads()); set_threads(1); print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["1", "1"]
