"""Games of PettingZoo's kind, drawn for films."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from multigrid_rl.envs.zoo import open_game
from multigrid_rl.evaluation.replays import Shot, ZooRecord, shots
from multigrid_rl.show.captions import AgentLine, Caption
from multigrid_rl.show.pictures import Picture, font
from multigrid_rl.text import ConfigError
from multigrid_rl.trust import user_code
from multigrid_rl.world.rendering import INK, PAPER

#: Pixels of a letter on a drawn text, and around it.
_LETTER, _PAD = 22, 24
#: Most seats whose players and actions stand below a picture.
_MOST_SEATS = 8


@dataclass(frozen=True)
class GameDrawing:
    """One recorded game that its renderer draws, as ``films.Drawing``; text is drawn where it is text.

    Args:
        record: the game.
        own: seats whose returns count.
    """

    record: ZooRecord
    own: tuple[str, ...] = ()

    @cached_property
    def _game(self) -> Any:
        with user_code(f"game {self.record.game}"):
            return open_game(self.record.env_id, self.record.env_args)

    @property
    def texts(self) -> bool:
        """Whether the game writes itself as text. Raises ``ConfigError``: it cannot be built."""
        return "text" in self._game.draws

    @property
    def fps(self) -> float:
        """Steps a second. Raises ``ConfigError``: the game cannot be built, or draws nothing."""
        if not self._game.draws:
            raise ConfigError(f"env_id={self.record.env_id}: expected a game that draws itself, got one that does not")
        return float(self._game.fps)

    @property
    def episode(self) -> SimpleNamespace:
        """Its ``number``, its ``actions``, as many as steps, and ``total``, the return of those who are judged."""
        game, returns = self.record, self.record.returns
        total = sum(returns[seat] for seat in self.own or returns)
        return SimpleNamespace(number=game.game, actions=range(game.steps), total=total)

    def pictures(self, every: int, width: int) -> Iterator[tuple[int, Caption, Picture]]:  # noqa: ARG002 - see resized
        """Yield step, caption and picture of the start, of every ``every``-th step and of the last one.

        Raises ``ConfigError``: see ``replays.shots``.
        """
        if "picture" in self._game.draws:
            for shot in shots(self.record, "picture", every):
                yield shot.step, self._caption(shot), np.asarray(shot.drawn, np.uint8)
            return
        written = list(shots(self.record, "text", every))
        columns = max(len(line) for shot in written for line in shot.drawn.splitlines())
        lines = max(len(shot.drawn.splitlines()) for shot in written)
        for shot in written:
            yield shot.step, self._caption(shot), _written(shot.drawn, columns, lines)

    def _caption(self, shot: Shot) -> Caption:
        game = self.record
        rows = [
            AgentLine(seat, player, shot.taken.get(seat, ""), shot.totals[seat], out=False)
            for seat, player in game.players.items()
        ]
        last = shot.step == game.steps
        return Caption(shot.step, tuple(rows if len(rows) <= _MOST_SEATS else ()), game.result if last else "")


def _written(text: str, columns: int, lines: int) -> Picture:
    """Draw ``text`` in a picture that holds so many columns and lines."""
    face = font(_LETTER, mono=True)
    size = (round(face.getlength("m") * columns) + 2 * _PAD, round(1.25 * _LETTER * lines) + 2 * _PAD)
    image = Image.new("RGB", size, PAPER)
    ImageDraw.Draw(image).multiline_text((_PAD, _PAD), text, font=face, fill=INK, spacing=_LETTER // 4)
    return np.asarray(image)
