"""Commands of competitions: ``export`` a player, play a ``cup``, ``grade`` a submission or a class."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from multigrid_rl.cli.app import refused
from multigrid_rl.cli.output import exit_on_signals, one_thread, refuse_unread
from multigrid_rl.competition.folders import Scratch
from multigrid_rl.files import data_root
from multigrid_rl.tables import CHECKPOINTS, load
from multigrid_rl.text import ConfigError, unknown
from multigrid_rl.trust import trusting_agents

FOLDER = (
    "Folder with one folder for each entry, a bundle or an agent; or a run with a league. Behind it overrides may say "
    "what is played: env_id=pettingzoo:... After verify, the folder of a cup: its tables are computed again, some of "
    "its pairings are replayed, and all is compared."
)
#: Pairings that ``cup verify`` and ``serve verify`` replay.
REPLAYED = 10
#: Folders of this project's named rubrics.
RUBRICS = ("configs/grade", "docs/assignments/rubrics")
Trusted = Annotated[
    bool, typer.Option("--trusted", help="Run agents without a sandbox, as programs that can do what you can.")
]


def cup(
    context: typer.Context,
    folders: Annotated[list[str], typer.Argument(metavar="[verify] FOLDER [OVERRIDES]", help=FOLDER)],
    scenario: Annotated[str | None, typer.Option(help="What is played; 1v1, or the run's own, by default.")] = None,
    games: Annotated[int, typer.Option(min=1, help="Games for each pair and side.")] = 200,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the games, random by default; keep it secret.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--with", help="A player, by name or folder, or a run, that takes part; repeat it."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the cup, new or to resume; runs/cups/... by default."),
    ] = None,
    start_s: Annotated[float, typer.Option(min=0.1, help="Seconds in which an external agent must be ready.")] = 20.0,
    step_s: Annotated[float, typer.Option(min=0.01, help="Seconds for an answer, all games of a step together.")] = 5.0,
    total_s: Annotated[float, typer.Option(min=0.1, help="Seconds for all answers of a pairing.")] = 120.0,
    cup_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds for all starts and answers of an agent in the cup; then it is out.")
    ] = 600.0,
    memory_mb: Annotated[int, typer.Option(min=16, help="Memory of an external agent.")] = 2048,
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Let copies of the catalogue's players play.")
    ] = False,
    trusted: Trusted = False,
    every: Annotated[bool, typer.Option("--all", help="With verify: replay every pairing.")] = False,
) -> None:
    """Round robin of all entries from all sides; resumes, and takes late entries; the last line is JSON."""
    from multigrid_rl.competition import cup_on_screen, sandbox
    from multigrid_rl.competition.entries import CupConfig

    one_thread()
    if len(folders) == 2 and folders[0] == "verify":
        refuse_unread(context, "verify", ("folders", "trusted", "every"))
        with trusting_agents(trusted):
            cup_on_screen.verify(Path(folders[1]), None if every else REPLAYED)
        return
    refuse_unread(context, "a cup to play", context.params.keys() - {"every"})
    with exit_on_signals("the same command resumes the cup"), trusting_agents(trusted):
        folder, overrides = _split_arguments(folders)
        played, spec, overrides = cup_on_screen.game(folder, scenario, overrides)
        limits = sandbox.Limits(start_s, step_s, total_s, memory_mb)
        config = CupConfig(
            played.name, spec, games, -1 if seed is None else seed, limits, cup_s=cup_s, overrides=tuple(overrides)
        )
        place = output or Path("runs") / "cups" / f"{folder.resolve().name}-{played.name}"
        cup_on_screen.play(folder, place, played, config, also or [], allow_copies=allow_copies)


def _split_arguments(folders: list[str]) -> tuple[Path, list[str]]:
    folder, *overrides = folders
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "scenario" and value:
            raise refused("FOLDER", f"one folder of entries (did you mean --{key} {value}?)", override)
        if not value:
            raise refused("FOLDER", "one folder of entries, or verify and the folder of a cup", " ".join(folders))
    return Path(folder), overrides


def export(
    run: Annotated[
        Path, typer.Argument(help="Run folder, or a checkpoint of RLlib's own algorithms; with --onnx a bundle, too.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder or file to write.")],
    seat: Annotated[
        str | None,
        typer.Option(help="Whose player: a seat, such as red_0 or player_1, or a whole team, red; a bundle has one."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it is called; the folder's name by default.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint of the run; the latest by default.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Of a checkpoint of RLlib's, whose environment has a name of your own.")
    ] = None,
    agent: Annotated[
        bool,
        typer.Option("--agent", help="Write a program that plays a network of your own, its class's file included."),
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write one file for onnxruntime instead, for programs without torch.")
    ] = False,
) -> None:
    """Write a trained player as a small folder that plays anywhere, without Ray and without the run."""
    from multigrid_rl.competition import bundle, onnx_file
    from multigrid_rl.players.cards import CARD_FILE, read_card
    from multigrid_rl.runs.players import seat_folders

    if onnx:
        if agent or name is not None:
            raise refused("--onnx", "nothing of --agent and --name: it is one file", output)
        with TemporaryDirectory() as scratch:
            is_bundle = (run / CARD_FILE).exists() or bool(seat_folders(run))
            for option, given in (("--checkpoint", checkpoint), ("--scenario", scenario)):
                if is_bundle and given is not None:
                    raise refused(option, f"nothing for {run}, a bundle", given)
            sources = bundle.bundle_folders(run) if is_bundle else _sources(run, seat, checkpoint, scenario, scratch)
            if is_bundle and seat and "" in sources and seat not in (seats := read_card(sources[""]).seats):
                raise refused("--seat", f"a seat of {run}: {', '.join(seats)}", seat)
            checked = onnx_file.write_onnx(onnx_file.player_folder(sources, seat), output)
        typer.echo(f"exported {output}: {output.stat().st_size} bytes; {checked}")
        return
    with TemporaryDirectory() as scratch:
        sources = _sources(run, seat, checkpoint, scenario, scratch)
        cards = bundle.export(sources, output, name=name, agent=agent)
    if agent:
        typer.echo(f"exported {output}, an agent; multigrid-rl inspect {output} shows whether it plays by itself")
        return
    for part, card in cards.items():
        plays = ", ".join(card.seats)
        typer.echo(f"exported {output / part}: {card.bytes} bytes, sha256 {card.sha256}, plays {plays}")
    if needs := bundle.needs_module(card):
        typer.echo(f"warning: {needs}")


def _sources(
    run: Path, seat: str | None, checkpoint: str | None, scenario: str | None, scratch: str
) -> dict[str, Path]:
    """Return the folders of players of a run, or of a checkpoint of RLlib's, as ``players_for`` does."""
    from multigrid_rl.runs.players import is_run, players_for

    if seat is None and not is_run(str(run)):
        raise refused("--seat", "a seat, such as red_0, or a whole team", "nothing")
    found = next((reader for file, reader in CHECKPOINTS.items() if (run / file).is_file()), None)
    if found is None and scenario is not None:
        raise refused("--scenario", "nothing with a run's folder", scenario)
    if found is None:
        return players_for(run, seat or "nothing", checkpoint)  # no seat: the refusal lists who was trained
    if checkpoint is not None:
        raise refused("--checkpoint", "nothing with a checkpoint of RLlib's", checkpoint)
    folders: dict[str, Path] = load(found)(run, seat, Path(scratch), scenario)
    return folders


def grade(
    bundle: Annotated[
        Path, typer.Argument(help="Folder or zip file with a bundle or an agent; with -o TABLE.csv, folder of a class.")
    ],
    rubric: Annotated[Path, typer.Option(help="What it is graded by: a file, or a name of ours, such as 1v1.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of the games; by default the rubric's, or a fresh one.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON to write, too; or the csv of a class, new or to resume.")
    ] = None,
    earlier: Annotated[
        Path | None, typer.Option(help="Folder of earlier submissions, a folder each, to find copies of.")
    ] = None,
    allow_copies: Annotated[
        bool, typer.Option("--allow-copies", help="Grade copies, too, where the rubric says `refuse_known`.")
    ] = False,
    step_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds of an agent for an answer, all games of a step together.")
    ] = 10.0,
    total_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds of an agent for all answers, against one opponent from one side.")
    ] = 300.0,
) -> None:
    """Grade a bundle by play: status 0 passed, 1 not passed, others: not graded (docs/judging.md). Ends with JSON."""
    from multigrid_rl.competition import cup_on_screen, grading, hand_ins, sandbox
    from multigrid_rl.competition.rubric import read_rubric

    one_thread()
    rubric = rubric_file(rubric)
    sandbox.check_not_bound(*filter(None, (rubric, bundle, output, earlier)))
    rules = read_rubric(rubric)
    if seed is not None:
        rules = rules.model_copy(update={"seed": seed})
    if allow_copies:
        rules = rules.model_copy(update={"refuse_known": False})
    table = output if output is not None and output.suffix == ".csv" else None
    if table is None:
        grading.check_hand_in(bundle)
    else:
        grading.check_table(table, bundle)
    limits = replace(grading.LIMITS, step_s=step_s, total_s=total_s)
    with exit_on_signals("the same command resumes the class" if table else ""), closing(Scratch()) as scratch:
        known = hand_ins.playable(earlier, scratch.path) if earlier is not None else {}
        examiner = grading.examiner_of(rules, rubric.parent, known, limits)
        if table is not None:
            cup_on_screen.show_class(hand_ins.hand_ins(bundle, scratch.path), examiner, table)
        else:
            cup_on_screen.show_grade(hand_ins.hand_in(bundle, scratch.path), examiner, output)


def rubric_file(given: Path) -> Path:
    """Return the file of a rubric by path or name. Raises ``ConfigError``: there is none."""
    by_name = {path.stem: path for folder in RUBRICS for path in sorted((data_root() / folder).glob("*.yaml"))}
    file = given if given.is_file() else by_name.get(str(given))
    if file is None:
        raise ConfigError(unknown("--rubric", str(given), by_name, "a file in yaml, {}"))
    return file
