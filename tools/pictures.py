"""The pictures of README and docs, made from this checkout: ``make pictures``; ``--only boards terminal`` makes some.

A run of 1v1 is trained for those that show one. Pages are photographed by a Chromium, where one is installed.
"""

import argparse
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageSequence
from rich.console import Console
from rich.text import Text

from multigrid_rl.config.compose import load_scenario
from multigrid_rl.players.catalogue import Catalogue
from multigrid_rl.show.captions import font
from multigrid_rl.world import constants as c
from multigrid_rl.world.engine import World
from multigrid_rl.world.rendering import draw_tile, render_frame

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PROGRAM = [sys.executable, "-m", "multigrid_rl.cli.main"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Nothing but the page: no window, no service in the background.
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking " \
        "--disable-component-update --disable-sync --hide-scrollbars"  # fmt: skip
PAPER, INK, TILE, GAP = (255, 255, 255), (40, 40, 44), 24, 16
#: A terminal's letters as SVG, without rich's fonts, which come from the network.
SVG = """<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: Menlo, Consolas, DejaVu Sans Mono, monospace; font-size: {char_height}px;
line-height: {line_height}px }}
{styles}</style>
<defs>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="6" fill="#17181c"/>
<g transform="translate(9, 9)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
Picture = NDArray[np.uint8]


def boards(_: Path) -> None:
    """Draw the start of three scenarios."""
    names = ("single-obstacle", "1v1", "2v2")
    starts = [World(load_scenario(name).spec, 1, seed=5) for name in names]
    panels = [(name, render_frame(world, 0, TILE)) for name, world in zip(names, starts, strict=True)]
    beside(panels, "game-boards.png")


def views(_: Path) -> None:
    """Draw a game, and what each agent sees of it."""
    world = World(load_scenario("1v1").spec, 1, seed=8)
    for action in (c.FORWARD, c.FORWARD, c.LEFT):
        world.step(np.array([[action, action]], np.int8))
    seen = [(f"what {seat} sees", view_of(world, a)) for a, seat in reversed(list(enumerate(world.spec.seats)))]
    beside([("the board", render_frame(world, 0, TILE)), *seen], "game-views.png")


def view_of(world: World, agent: int) -> Picture:
    """Draw an agent's tokens, ahead is up; what it does not see is grey."""
    size = world.spec.view_size
    tokens, turn = world.outputs.tokens[0, agent, : size * size], 3 - int(world.state.heading[0, agent])
    tiles = [draw_tile(TILE, int(code), turn=turn % 4) for code in tokens]
    return np.concatenate([np.concatenate(tiles[i * size : (i + 1) * size]) for i in range(size)], axis=1)


def beside(panels: list[tuple[str, Picture]], name: str) -> None:
    """Write pictures side by side, each under its title."""
    widths = [max(picture.shape[1], round(font(15).getlength(title))) + GAP for title, picture in panels]
    height = 28 + max(picture.shape[0] for _, picture in panels)
    image = Image.new("RGB", (sum(widths) - GAP, height), PAPER)
    draw, left = ImageDraw.Draw(image), 0
    for (title, picture), width in zip(panels, widths, strict=True):
        draw.text((left, 4), title, font=font(15), fill=INK)
        image.paste(Image.fromarray(picture), (left, 28))
        left += width
    image.save(IMAGES / name, optimize=True)


def game(_: Path) -> None:
    """Film a game of two frozen players."""
    command = "video blue-master scenario=1v1 --opponent blue-adept --seed 7 --game 16 --force -o"
    subprocess.run([*PROGRAM, *command.split(), str(IMAGES / "game-1v1.gif")], check=True)


def terminal(folder: Path) -> None:
    """Train in a terminal, and keep what stands in it at the end."""
    command = ["multigrid-rl", "train", "scenario=1v1", "run_dir=runs/mine"]
    text = screen_of(command, folder)
    console = Console(record=True, width=118, file=Path(os.devnull).open("w"))  # noqa: SIM115
    console.print(Text(f"$ {' '.join(command)}"), Text.from_ansi(f"{text}\n"), sep="\n")
    drawn = console.export_svg(code_format=SVG, unique_id="t")
    (IMAGES / "train-1v1.svg").write_text(drawn, encoding="utf-8")


def screen_of(command: list[str], folder: Path) -> str:
    """Run a command in a terminal of 116 columns; returns what it shows at the end, with its colours."""
    written = b""

    def read(number: int) -> bytes:
        nonlocal written
        part = os.read(number, 65536)
        written += part
        return part

    here, path = Path.cwd(), os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.chdir(folder)
    os.environ |= {"COLUMNS": "116", "LINES": "60", "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "PATH": path}
    try:
        if pty.spawn(command, read):
            raise SystemExit(f"{' '.join(command)}: expected exit status 0")
    finally:
        os.chdir(here)
    return last_state(written.decode())


def last_state(written: str) -> str:
    """Follow the moves of the cursor that a live table makes; returns the lines that are left, colours kept."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[lh]|\r|\n)", written):
        if part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part and not part.startswith("\x1b[?25") and part != "\r":
            lines[row] += part
    return "\n".join(lines).rstrip()


def report(folder: Path) -> None:
    """Photograph the page of the run: wide, and as a phone in the dark shows it."""
    run = trained(folder)
    subprocess.run([*PROGRAM, "report", str(run)], check=True)
    photograph(run / "report.html", "report-run.png", "--window-size=1100,1500")
    photograph(run / "report.html", "report-phone.png", "--window-size=500,1100", "--force-dark-mode",
               "--blink-settings=preferredColorScheme=0")  # fmt: skip


def cup(folder: Path) -> None:
    """Photograph the page of a cup of players that are here."""
    (folder / "submissions").mkdir()
    guests = [word for name in ("blue-rookie", "blue-adept", "blue-master", "key-runner") for word in ("--with", name)]
    out = folder / "runs" / "cup"
    command = [*PROGRAM, "cup", str(folder / "submissions"), "--scenario", "1v1", "--games", "200", *guests, "-o"]
    subprocess.run([*command, str(out)], check=True)
    photograph(out / "report.html", "report-cup.png", "--window-size=1100,1100")


def play(_: Path) -> None:
    """Photograph the page on which a person plays, after some steps; its stream never ends, so by Playwright."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - for this picture alone

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    command = [*PROGRAM, "play", "scenario=1v1", "--opponent", "blue-master", "--seed", "3", "--port", "8799"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
            page.set_viewport_size({"width": 1100, "height": 820})
            page.goto("http://127.0.0.1:8799/")
            for step, key in enumerate(("ArrowUp", "ArrowRight", "ArrowUp")):
                page.locator(".counter b", has_text=f"Step {step}").wait_for()
                page.keyboard.press(key)
            page.locator(".counter b", has_text="Step 3").wait_for()
            page.screenshot(path=str(IMAGES / "play-1v1.png"))
    finally:
        server.terminate()
        server.wait()
    smaller("play-1v1.png")


#: Players of the gallery: whom its film shows it against, what it is; further words of the film and of play.
GALLERY = {
    "key-runner": ("hunter", "scripted: fetches its key, opens its door", "scenario=1v1"),
    "hunter": ("key-runner", "scripted: chases and eliminates opponents", "scenario=1v1"),
    "blue-rookie": ("random", "the first opponent, from 140,000 steps against random", "scenario=1v1"),
    "blue-adept": ("blue-rookie", "the opponent of the first hour", "scenario=1v1"),
    "blue-master": ("blue-adept", "from 4 million steps against four players", "scenario=1v1"),
    "blue-grandmaster": ("blue-master", "a GRU, from 52 million steps in leagues", "scenario=1v1"),
    "blue-champion": ("blue-grandmaster", "from 165 million more, against its best responses", "scenario=1v1"),
    "blue-sentinel": ("blue-champion", "waits for its opponent, and eliminates it", "scenario=1v1"),
    "blue-legend": ("blue-sentinel", "from 104 million steps, the hardest to exploit", "scenario=1v1"),
    "2v2-rookie": ("random", "a team's first opponent", "scenario=2v2"),
    "2v2-adept": ("2v2-rookie", "from 1.5 million steps against three teams", "scenario=2v2"),
    "2v2-master": ("2v2-adept", "from 8 million steps in a league", "scenario=2v2"),
    "2v2-champion": ("2v2-master", "from 56 million more, against its best responses", "scenario=2v2"),
    "cheetah-expert-2": (None, "HalfCheetah, an expert for imitation learning", "scenario=halfcheetah"),
}


def gallery(_: Path) -> None:
    """Film a median game of each player, and write the page that shows them."""
    cards, rows = Catalogue(), []
    for name, (opponent, about, scenario) in GALLERY.items():
        film = IMAGES / "gallery" / f"{name}.gif"
        words = ["video", name, "--game", "median", "--force", "-o", str(film), scenario]
        words += ["--opponent", opponent, "--tile", "16"] if opponent else ["env_args={max_episode_steps: 80}"]
        subprocess.run([*PROGRAM, *words], check=True)
        if opponent is None:
            halved(film)
        won = next((row for row in cards.strength(name) if row.opponent == "random"), None)
        strength = f"wins {won.win:.1%} against `random`" if won else "return 9,160"
        command = f"multigrid-rl {'play' if opponent else 'video'} {scenario if opponent else name}"
        command += f" --opponent {name}" if opponent else ""
        rows.append(f"| ![{name}](images/gallery/{name}.gif) | **{name}**: {about}; {strength} | `{command}` |")
    page = ROOT / "docs" / "gallery.md"
    head = page.read_text(encoding="utf-8").partition("| |")[0]
    page.write_text(head + "| | player | meet it |\n|---|---|---|\n" + "\n".join(rows) + "\n", encoding="utf-8")


def halved(film: Path) -> None:
    """Keep every second frame of a film, at half its width."""
    with Image.open(film) as whole:
        frames = [frame.copy() for frame in ImageSequence.Iterator(whole)][::2]
    small = [frame.convert("RGB").resize((frame.width // 2, frame.height // 2)).quantize(32) for frame in frames]
    small[0].save(film, save_all=True, append_images=small[1:], duration=80, loop=0)


def smaller(name: str) -> None:
    """Write a picture of a page again, in few colours."""
    image = Image.open(IMAGES / name).convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    image.save(IMAGES / name, optimize=True)


def photograph(page: Path, name: str, *options: str) -> None:
    """Take a picture of a page by a browser, or say that there is none."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"{name}: left as it is, expected one of {', '.join(BROWSERS)}")
        return
    shot = [browser, *QUIET.split(), *options, f"--screenshot={IMAGES / name}", page.resolve().as_uri()]
    subprocess.run(shot, check=True, capture_output=True, timeout=120)
    smaller(name)


def trained(folder: Path) -> Path:
    """Return the run that the pictures show, trained unless it is there."""
    run = folder / "runs" / "mine"
    if not run.exists():
        terminal(folder)
    return run


PICTURES: dict[str, Callable[[Path], None]] = {
    "boards": boards, "views": views, "game": game, "terminal": terminal, "report": report,
    "cup": cup, "play": play, "gallery": gallery,
}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    with tempfile.TemporaryDirectory() as place:
        for wanted in parser.parse_args().only:
            PICTURES[wanted](Path(place))
