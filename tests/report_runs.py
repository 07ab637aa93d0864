"""Run folders and cups for tests of reports: made of numbers, nothing is trained."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from multigrid_rl.competition.cup.cup import play_cup
from multigrid_rl.competition.cup.entries import CupConfig, Entry
from multigrid_rl.competition.cup.standings import results
from multigrid_rl.competition.sandbox import Limits
from multigrid_rl.config.compose import compose, load_scenario
from multigrid_rl.config.scenario import env_factory
from multigrid_rl.config.schema import to_yaml
from multigrid_rl.evaluation.cup_results import CupResults
from multigrid_rl.evaluation.replays import record
from multigrid_rl.gates import GateKeeper, Moment
from multigrid_rl.players.episodes import play_games
from multigrid_rl.players.scripted import KeyRunner, RandomPlayer
from multigrid_rl.runs.gating import gates_of
from multigrid_rl.types import GameSpec

#: What somebody may call an entry, or write as a reason, to take over the page.
EVIL = "<script>alert(1)</script>"
EVILS = (EVIL, "</script><b onclick=alert(2)>", "<img src=x onerror=alert(3)>", '"><svg onload=alert(4)>', "a&amp;b")

#: A game of two against two, for pages to replay.
TEAMS = GameSpec(blue=2, red=2, obstacle=True, random_keys=False, max_steps=60)


@dataclass
class Story:
    """What becomes of a run."""

    reports: int = 60
    good_from: int = 20  # report from which all gates are met
    ended: str | None = "held"  # None: killed, no verdict
    overrides: tuple[str, ...] = ()
    torn: bool = False  # the last line was half written
    against: tuple[str, ...] = ()  # opponents that take turns


def write_run(folder: Path, story: Story | None = None, **changes) -> Path:
    """A 1v1 run folder as training writes it, without a checkpoint; ``changes`` go into ``provenance.json``."""
    story = story or Story()
    folder.mkdir(parents=True)
    config = compose(["scenario=1v1", "seed=3", f"run_dir={folder}", *story.overrides])
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    keeper = GateKeeper(gates_of(config, env_factory(config).specs))
    rows = [_row(k, story) for k in range(1, story.reports + 1)]
    for row in rows:
        now = Moment(row["env_steps"], row["policy_updates"], row["seconds"])
        keeper.report(now, 200, row)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text[:-40] if story.torn else text, encoding="utf-8")
    provenance = {"command": "multigrid-rl train scenario=1v1 seed=3", "commit": "abc", "seed": 3, **changes}
    (folder / "provenance.json").write_text(json.dumps({"versions": {"ray": "2"}, "opponents": [], **provenance}))
    if story.ended is not None:
        verdict = {**keeper.verdict(), "ended": story.ended, "env_steps": rows[-1]["env_steps"]}
        (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    return folder


def _row(number: int, story: Story) -> dict:
    good = number >= story.good_from
    wave = 0.02 * math.sin(number)
    return {
        **{f"win_against/red_0/{name}": k / 10 for k, name in enumerate(story.against)},
        "iteration": number, "env_steps": number * 4096, "policy_updates": number, "seconds": number * 0.5,
        "episodes": number * 200, "report_episodes": 200.0, "episode_len_mean": 18.0 + wave if good else 60.0,
        "return_mean/red_0": 1.38 + wave if good else -0.5, "explained_variance/red_0": 0.9 if good else -0.1,
        "entropy/red_0": 0.2 if good else 1.9, "win/red_0": 0.95 if good else 0.3, "draw/red_0": 0.0,
        "defeat/red_0": 0.05 if good else 0.7, "behaviour/red_0/key_pickup": 0.98, "behaviour/red_0/door_open": 0.2,
        "behaviour/red_0/eliminated_opponents": 0.75, "behaviour/red_0/ball_pay": 0.0,
        "learner/red_0/policy_loss": 0.01, "learner/red_0/vf_loss": 0.1, "learner/red_0/lr": 1e-3,
        "approx_kl/red_0": 0.01, "clip_fraction/red_0": 0.2,
        "timing/sample_s": 0.1, "timing/engine_s": 0.02, "timing/learn_s": 0.3, "timing/network_s": 0.2,
        "timing/sync_s": 0.01, "timing/metrics_s": 0.01, "timing/checkpoint_s": 0.0, "timing/other_s": 0.08,
    }  # fmt: skip


def small_cup(folder: Path, *, games: int = 4, broken: tuple[str, ...] = (), scenario: str = "1v1") -> CupResults:
    """A real cup of three scripted players, and of entries that cannot play, called and excused as ``broken`` says."""
    table = CupConfig(scenario, load_scenario(scenario).spec, games, 9, Limits())
    entries = [Entry(name, "scripted", "built in") for name in ("hunter", "key-runner", "random")]
    entries += [Entry(f"{k} {name}", "broken", name, problem=f"it says {name}") for k, name in enumerate(broken)]
    entries.sort(key=lambda entry: entry.name)
    return results(entries, play_cup(entries, table, folder, lambda *_: None), table, {"multigrid-rl": "0"})


def games_of(spec: GameSpec, count: int):
    """Recorded games of key runners against random players."""
    players = {seat: KeyRunner(spec) if seat.startswith("red") else RandomPlayer() for seat in spec.seats}
    played = play_games(spec, players, count, seed=11)
    names = {seat: f"<b>{seat}</b>" for seat in spec.seats}
    return [record(spec, played, row, seed=11, players=names, label=f"game {row}") for row in range(count)]
