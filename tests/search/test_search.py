"""Searches for real: every trial a run folder, failures told, kills survived, perturbed values in force."""

import json
import os
import shlex
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from commands import call, complaint, works
from composing import read
from multigrid_rl.config.compose import compose
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.players import catalogue
from multigrid_rl.rllib.algorithm import built_algorithm
from multigrid_rl.runs.checkpoints import newest_good
from multigrid_rl.runs.folder import RunFolder
from multigrid_rl.runs.reader import read_run
from multigrid_rl.search import tuning
from multigrid_rl.search.plans import Outcome
from multigrid_rl.search.search_folder import SearchFolder
from multigrid_rl.search.tuning import SearchRun, search
from multigrid_rl.training.loop import train
from multigrid_rl.training.stages import stages_of
from tiny_runs import TINY, rows_of, without_time

#: What trials share: a small task whose reports come soon.
BASE = ["scenario=1v1", *(part for part in TINY if "until" not in part), "train.checkpoint_every=1000000"]
THREE = (
    "search=three-stage search.max_concurrent=1 search.report_every=1024 search.broad.trials=2 search.broad.until=6000 "
    "search.refine.trials=1 search.refine.until=6000 search.confirm.candidates=1 "
    "search.confirm.attempts=1 search.confirm.seeds=1 search.confirm.until=6000"
)


def outcomes(folder: Path) -> list[Outcome]:
    return SearchFolder.reopen(folder).outcomes()


def space_file(path: Path, **variables: str) -> str:
    path.write_text("\n".join(f"{key.replace('__', '.')}: {value}" for key, value in variables.items()) + "\n")
    return f"search.space={path}"


@pytest.mark.parametrize("on_tune", [False, pytest.param(True, marks=pytest.mark.long)])
def test_three_stages_in_two_sessions_write_files(tmp_path, capfd, monkeypatch, request, on_tune):
    if on_tune:
        request.getfixturevalue("session")
    else:
        here(monkeypatch)
    # A training reward that does not take what it is given fails when the first game is played.
    space = space_file(
        tmp_path / "some.yaml", train__shaping="{choice: [null, 'math:floor']}", train__lr="{loguniform: [3e-4, 3e-3]}"
    )
    folder = tmp_path / "search"
    place = SearchFolder.from_overrides([*BASE, *THREE.split(), space, "seed=1"], folder)
    heard: list[Outcome] = []
    half = search(place, heard.append, lambda: bool(heard))
    assert not half.complete
    (failed,) = first_session = outcomes(folder)
    assert (failed.spec.id, failed.status) == ("s1-000", "failed")
    assert failed.reason == "TypeError: math.floor() takes exactly one argument (2 given)"
    result = works("search", "--resume", folder)
    assert "1 trials have ended already" in result.output
    assert f"failed:   s1-000: {failed.reason}" in result.output
    # What had ended was not run again.
    rows = outcomes(folder)
    assert rows[:1] == first_session
    assert [row.spec.stage for row in rows] == ["broad", "broad", "refine", "confirm"]
    assert [row.status for row in rows] == ["failed", "finished", "finished", "finished"]
    assert "Traceback" not in capfd.readouterr().err
    for name in ("report.md", "trials.csv", "winner.yaml"):
        assert (folder / name).is_file()
    assert "train it: multigrid-rl train scenario=1v1" in result.output
    for row in [row for row in rows if row.status == "finished"]:
        run = read_run(folder / "trials" / row.spec.id)  # what report and evaluate read
        assert run.verdict["env_steps"] == row.env_steps == 6144
        assert run.config["train"]["lr"] == place.request.space.values(row.spec.params)["train.lr"]
        assert run.provenance["command"].startswith("multigrid-rl train scenario=1v1")
    # A trial is the run that its command says.
    first = folder / "trials" / "s1-001"
    again = tmp_path / "again"
    command = shlex.split(json.loads((first / "provenance.json").read_text())["command"])[2:]
    config = compose(command)
    run = RunFolder(again, config, env_factory(config).load())
    with built_algorithm(config, stages_of(config)) as algorithm:
        train(algorithm, config, run, lambda row, keeper: None, lambda: False)
    run.close()
    assert without_time(rows_of(first)) == without_time(rows_of(again))


def test_ends_with_status_1_when_all_trials_fail(tmp_path, monkeypatch):
    def all_fail(run: SearchRun) -> None:
        while isinstance(run.suggest("t"), dict):
            run.folder.end(Outcome(run.running["t"], "failed", None, reason="RunError: no luck"))
            run.on_trial_complete("t", error=True)

    monkeypatch.setattr(tuning, "ray_session", nullcontext)
    monkeypatch.setattr(tuning, "run_on_tune", all_fail)
    result = call("search", *BASE, *THREE.split(), "--folder", tmp_path / "all")
    assert result.exit_code == 1
    assert "multigrid-rl: all 2 trials failed; s1-000: RunError: no luck" in result.output
    assert not (tmp_path / "all" / "winner.yaml").exists()


def variables() -> dict[str, str]:
    """What tells Tune how to speak."""
    return {name: value for name, value in os.environ.items() if name.startswith(("TUNE_", "RAY_AIR_"))}


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_tune_isolates_trials_and_names_failed(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")
    before = variables()
    space = space_file(tmp_path / "some.yaml", train__shaping="{choice: [null, 'math:floor']}")
    tiny = "search=asha search.max_concurrent=1 search.trials=2 search.startup=2 search.until=1536 search.grace=1024"
    folder = tmp_path / "search"
    works("search", *BASE, *tiny.split(), "search.report_every=1024", space, "seed=1", "--folder", folder)
    reported = {row.status: row for row in outcomes(folder)}
    assert sorted(reported) == ["failed", "finished"]
    assert reported["failed"].reason == "TypeError: math.floor() takes exactly one argument (2 given)"
    assert "Traceback" not in capfd.readouterr().err
    run = folder / "trials" / reported["finished"].spec.id
    assert rows_of(run)[-1]["env_steps"] == reported["finished"].env_steps == 1536
    command = json.loads((run / "provenance.json").read_text())["command"].split()
    assert (command[:2], "scenario=1v1" in command) == (["multigrid-rl", "train"], True)
    assert variables() == before  # Tune is silent within a search, and not in what follows it


@pytest.mark.long
@pytest.mark.usefixtures("session")
def test_asha_stops_lagging_trials_and_keeps_run_folders(tmp_path):
    folder = tmp_path / "search"
    asha = "search=asha search.max_concurrent=1 search.trials=4 search.startup=3 search.until=16384 search.grace=4096"
    works("search", *BASE, *asha.split(), "search.reduction=2", "search.report_every=1024", "--folder", folder)
    rows = outcomes(folder)
    assert sorted(row.spec.id for row in rows) == [f"a00{k}" for k in range(4)]
    stopped = [row for row in rows if row.status == "stopped"]
    assert stopped
    for row in stopped:
        assert row.env_steps in (4096, 8192)  # it has heard before it plays on
        run = folder / "trials" / row.spec.id
        verdict = json.loads((run / "verdict.json").read_text())
        assert (verdict["ended"], verdict["env_steps"]) == ("interrupted", row.env_steps)
        assert (run / verdict["checkpoint"] / "players").is_dir()


@pytest.mark.slow
def test_perturbed_values_apply_after_checkpoint_copy(tmp_path):
    # A restored checkpoint brings its optimiser's step size and its schedules along (ray issue 62173).
    def went(name: str, start: Path | None, until: int, *overrides: str):
        config = compose([*BASE, f"train.until={until}", "experiment=none", *overrides])
        run = RunFolder(tmp_path / name, config, env_factory(config).load())
        with built_algorithm(config, stages_of(config), start) as algorithm:
            train(algorithm, config, run, lambda row, keeper: None, lambda: False, start)
        run.close()
        return rows_of(tmp_path / name)

    keys = {"lr": ("train.lr", "train.lr_final"), "entropy": ("train.entropy_coef", "train.entropy_final")}

    def overrides(values):
        return [f"{key}={value}" for name, value in values.items() for key in keys.get(name, (f"train.{name}",))]

    # A clip this small takes the gradient of nearly every step that has moved at all.
    own = {"lr": 1e-3, "entropy": 0.01, "clip": 0.2, "epochs": 2, "gamma": 0.99, "lam": 0.95}
    new = {"lr": 3e-4, "entropy": 0.5, "clip": 1e-4, "epochs": 3, "gamma": 0.8, "lam": 0.5}
    went("donor", None, 2048, *overrides(own))
    start = newest_good(tmp_path / "donor").path
    same, copied = went("same", start, 2560, *overrides(own)), went("copied", start, 2560, *overrides(new))
    assert (same[0]["learner/red_0/lr"], copied[0]["learner/red_0/lr"]) == (own["lr"], new["lr"])
    # The same weights played the same games: what differs, differs by the loss.
    assert same[0]["entropy/red_0"] == copied[0]["entropy/red_0"]
    assert same[0]["learner/red_0/policy_loss"] != copied[0]["learner/red_0/policy_loss"]
    # Each of them by itself.
    gradients = {row[0]["learner/red_0/grad_norm"] for row in (same, copied)}
    for name, value in own.items():
        row = went(f"kept-{name}", start, 2560, *overrides({**new, name: value}))
        gradients.add(row[0]["learner/red_0/grad_norm"])
    assert len(gradients) == 2 + len(own)


def here(monkeypatch) -> None:
    """Run trials in this process, without Tune: quicker, and the trials are the same."""

    def run_here(run: SearchRun) -> None:
        while isinstance(config := run.suggest("t"), dict):
            with suppress(TypeError):
                tuning.run_trial(run.folder, config["spec"])
            run.on_trial_complete("t")

    monkeypatch.setattr(sys, "argv", sys.argv)  # trials put their own command there
    monkeypatch.setattr(tuning, "ray_session", nullcontext)  # none is needed
    monkeypatch.setattr(tuning, "run_on_tune", run_here)


@pytest.mark.slow
def test_population_continues_from_best_with_own_values(tmp_path, monkeypatch):
    here(monkeypatch)
    seen, read_network = [], catalogue.read_network
    monkeypatch.setattr(catalogue, "read_network", lambda at, card: seen.append(at.name) or read_network(at, card))
    folder = tmp_path / "search"
    pbt = "search=pbt search.max_concurrent=1 search.population=2 search.generations=2 search.interval=4096"
    more = ["search.quantile=0.5", "search.report_every=1024", "seed=2"]
    works("search", *BASE, *pbt.split(), *more, "--folder", folder)
    assert seen == 5 * ["blue-rookie"]  # once for the request, once for each of four trials
    rows = {row.spec.id: row.spec for row in outcomes(folder)}
    assert len(rows) == 4
    copied = [spec for name, spec in rows.items() if name.startswith("g01") and spec.origin[3:] != name[3:]]
    assert copied
    for spec in copied:
        donor = read_run(folder / "trials" / spec.origin)
        run = folder / "trials" / spec.id
        assert read(run / "config.yaml")["train"]["lr"] != donor.config["train"]["lr"]
        rows = rows_of(run)
        assert (rows[0]["env_steps"], rows[-1]["env_steps"]) == (4096 + 512, 8192)
        # The gates' windows were taken over, too.
        assert json.loads((run / "verdict.json").read_text())["gates"][0]["value"] is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["scenario=nowhere"], ", got nowhere"),
        (["--resume", "nowhere"], "--resume nowhere: expected the folder of a search"),
        (["--resume", "nowhere", "seed=3"], "expected no overrides and no --folder beside it"),
    ],
)
def test_rejects_mistakes_with_status_2(given, message):
    result = call("search", *given)
    assert message in complaint(result)
    assert result.stdout == ""
