"""The verbs ``serve`` and ``inspect``."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from multigrid_rl.cli.app import ended_by_signals, one_thread, refused
from multigrid_rl.competition.cup_commands import Trusted
from multigrid_rl.text import unknown
from multigrid_rl.trust import strangers, trusting_agents

_ACTIONS = {
    "start": "answer browsers and play, until Ctrl-C; what an action is left out for",
    "verify": "compute the ladder again from all games, and replay ten pairings",
    "doctor": "look for what is damaged, overdue or in the way",
    "backup": "write everything into one new file, -o FILE",
    "restore": "bring back what a backup has, into an empty folder and database; FILE behind the course",
    "final": "after the deadline: a cup of all that stands on the ladder, with fresh seeds, -o FOLDER",
    "freeze": "take no more hand-ins; `thaw` takes them again",
    "thaw": "",
    "regrade": "grade all rated hand-ins again",
    "export": "write ladder.csv, moodle.csv, canvas.csv or gradescope.zip, named behind the course, perhaps with a "
    "deadline's name behind it, the last one by default",
    "purge": "forget who asked for it a week ago, and everybody once `keep_days` after the last deadline are over; or "
    "at once the person whose id stands behind the course",
    "links": "print the personal link of everybody, as a CSV",
}
HOST = "127.0.0.1"
_WORDS = "[ACTION] COURSE [MORE]"
_HELP = "course.yaml, perhaps behind an action: " + "; ".join(
    f"{name}: {does}" for name, does in _ACTIONS.items() if does
)


def serve(
    words: Annotated[list[str], typer.Argument(metavar=_WORDS, help=_HELP)],
    home: Annotated[Path | None, typer.Option(help="Folder of files; beside the course by default.")] = None,
    database: Annotated[
        str | None, typer.Option(help="postgresql://user@host/name; a file of SQLite in the folder by default.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: for other machines, too.")] = HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    url: Annotated[str | None, typer.Option(help="How browsers reach it: https://ladder.example.org.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine says who asks (docs/serve.md).")
    ] = False,
    workers: Annotated[
        str | None,
        typer.Option(
            help="Processes that play networks, the course's number by default; or a Ray cluster that plays: "
            "auto, host:port or ray://host:port."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file or folder of an action.")] = None,
    every: Annotated[bool, typer.Option("--all", help="With verify: replay every pairing.")] = False,
    trusted: Trusted = False,
) -> None:
    """Serve a class: hand-ins, a ladder, grades (docs/serve.md). One process and its children; no service is needed."""
    # Before numpy is loaded: of a dozen processes on the same cores each would wait for its own threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from multigrid_rl.serve.supervisor import place_of, start

    action, *rest = words if words[0] in _ACTIONS else ("start", *words)
    if not rest:
        raise refused("COURSE", "a file such as course.yaml", "none")
    if len(rest) > {"restore": 2, "purge": 2, "export": 3}.get(action, 1):
        raise refused("ACTION", " or ".join(_ACTIONS), unknown("it", rest[0], _ACTIONS).partition("got ")[2])
    with trusting_agents(trusted):
        place = place_of(Path(rest[0]), home, database)
        if action == "start":
            address = url or f"http://{'localhost' if host == HOST else host}:{port}"
            start(place, (host, port), address.rstrip("/"), behind_proxy=behind_proxy, workers=workers)
            return
        from multigrid_rl.serve import deeds

        one_thread()
        with ended_by_signals(), deeds.opened(place, empty=action == "restore") as queue:
            asked = deeds.AdminContext(place, queue, output, rest[1:], every, url or f"http://localhost:{port}")
            told = deeds.DEEDS[action](asked)
    if isinstance(told, str):
        typer.echo(told, nl=False)
        return
    typer.echo(json.dumps(told))
    if told.get("different"):
        raise typer.Exit(1)


def inspect(
    folder: Annotated[Path, typer.Argument(help="A bundle or an agent, as a folder or a zip file (docs/agents.md).")],
    scenario: Annotated[
        str | None, typer.Option(help="Game that it is to play; a bundle's own by default, 1v1 for an agent.")
    ] = None,
    rookie: Annotated[str, typer.Option(help="The player that it meets.")] = "random",
    course: Annotated[Path | None, typer.Option(help="The file course.yaml, which says scenario and rookie.")] = None,
    trusted: Trusted = False,
) -> None:
    """Show what a bundle or an agent is, and let it play as a class server does to check it; the last line says ok."""
    from multigrid_rl.serve.judge import inspected

    one_thread()
    with ended_by_signals(), strangers(), trusting_agents(trusted):
        for line in inspected(folder, scenario, rookie, course):
            typer.echo(line)
