"""What is told on the screen, for whom: a terminal, a pipe, somebody who asks for help or memory."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import multigrid_rl
from commands import call, complaint, works
from multigrid_rl.config.compose import compose
from multigrid_rl.cores import free_memory
from multigrid_rl.metrics import STAGES
from multigrid_rl.training import advice, stages
from multigrid_rl.training import screen as live


@pytest.mark.parametrize("words", [["-h"], ["train", "-h"]])
def test_help_has_a_short_name(words):
    result = works(*words)
    assert "Usage:" in result.output


def test_the_package_is_the_command():
    words = [sys.executable, "-m", "multigrid_rl", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == multigrid_rl.__version__


def test_a_run_that_was_held_before_goes_on_quietly(capsys):
    """One line when its gates hold, and then one every five seconds."""
    row = {"env_steps": 1, "env_steps_per_s": 1.0, **{f"timing/{name}_s": 1.0 for name in (*STAGES, "other")}}
    keeper = types.SimpleNamespace(held=False, states=[], last=None)
    with live.progress(live.live_console(), compose(["scenario=1v1"])) as show:
        for step in range(50):
            keeper.held = step >= 10
            show(row, keeper)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_no_cursor_moves_where_there_is_no_terminal(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    live.live_console().print("[bold]x[/]")
    assert not live.live_console().is_terminal
    assert capsys.readouterr().out == "x\n"


@pytest.mark.parametrize("value", ["0.0", "0.5"])
def test_a_recipe_stays_one_when_its_values_change(value):
    typed = ["scenario=1v1", f"train.bonus.all.key_pickup={value}"]
    config = compose(typed)
    assert config.experiment == "1v1"
    assert advice.expectation(config) is not None
    told = live.preflight(config, {}, Path("runs/x"), "", advice.settings(typed))
    assert told[:2] == [f"set:      {typed[1]} instead of 1.0", "recipe:   experiment=1v1, with 1 value changed"]
    assert "recipe:   experiment=1v1, with 2 values changed" in live.preflight(
        config, {}, Path("runs/x"), "", [*advice.settings([*typed, "train.lr=0.1"])]
    )


@pytest.mark.parametrize("verb", ["train", "explain"])
def test_a_batch_beyond_the_free_memory_is_refused(verb, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages, "free_memory", lambda: 2**30)
    said = complaint(call(verb, "scenario=1v1", "train.num_envs=1000000", "train.until=1e9"))
    wanted = "train.num_envs=1000000 x train.num_steps=16: expected a batch that fits into 1.0 GiB of free memory"
    assert said == f"multigrid-rl: {wanted}, got at least 3.0 GiB"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "limit", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
)
def test_free_memory_is_that_of_the_machine_or_of_its_container(limit, tmp_path):
    assert free_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       4 kB\n")
    assert free_memory(tmp_path) == 4096
    for name, value in zip(limit, ("3000", "1000"), strict=True):
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    (file.parent / "memory.stat").write_text("anon 5\ninactive_file 300\nactive_file 100\n")
    assert free_memory(tmp_path) == 2400


@pytest.mark.parametrize(("seat", "learns"), [("blue_0", False), ("red_0", True), ("all", True)])
def test_a_bonus_for_a_seat_that_does_not_learn_is_a_warning_before_the_start(seat, learns):
    config = compose(["scenario=1v1", f"train.bonus.{seat}.step=0.1"])
    warnings = [line for line in live.preflight(config, {}, Path("runs/x"), "") if "train.bonus" in line]
    assert warnings == [f"warning:  train.bonus.{seat}: it has no effect, as {seat} does not learn"] * (not learns)
