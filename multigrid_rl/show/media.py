"""Episodes in TensorBoard, ``tracking=tensorboard-media``: a film, and histograms of returns and lengths."""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from multigrid_rl.evaluation.evaluation import evaluate, labelled_games
from multigrid_rl.evaluation.replays import GameRecord
from multigrid_rl.evaluation.targets import find_target
from multigrid_rl.players.cards import PlayerError
from multigrid_rl.runs.checkpoints import checkpoints_in
from multigrid_rl.show import EPISODES
from multigrid_rl.show.films import GameDrawing
from multigrid_rl.show.run_data import GAMES_SEED
from multigrid_rl.show.video import Film, film_bytes, pictures, short_film
from multigrid_rl.text import ConfigError, one_line
from multigrid_rl.types import RunError

LOG = logging.getLogger(__name__)
#: Most pictures of an episode of Gymnasium: TensorBoard loads all films of a run at once.
_PICTURES = 60
_BINS = 20


class Media:
    """Plays complete episodes with drawn actions after each checkpoint, and shows the median one.

    They are a separate run in TensorBoard, ``tensorboard/media``, since it reads one file of a folder at a time. Where
    episodes cannot be played or drawn, the run goes on without them, with one warning.
    """

    def begin(self, folder: Path, values: dict[str, Any]) -> None:  # noqa: ARG002 - as other trackers
        """Wait for the first checkpoint that is not there yet."""
        self._folder, self._warned = folder, False
        self._last = self._newest()
        self._writer = EventFileWriter(str(folder / "tensorboard" / "media"))

    def _newest(self) -> Path | None:
        return next(reversed(checkpoints_in(self._folder / "checkpoints")), None)

    def row(self, row: dict[str, Any]) -> None:  # noqa: ARG002 - as other trackers
        """Show the policy of a new checkpoint, if there is one."""
        newest = self._newest()
        if newest is not None and newest != self._last:
            self._last = newest
            try:
                self._show(newest)
            except (ConfigError, PlayerError, RunError, OSError) as error:
                if not self._warned:
                    LOG.warning("tracking=tensorboard-media: %s; the run goes on without", one_line(error))
                self._warned = True

    def end(self, verdict: dict[str, Any] | None) -> None:
        """Show the last checkpoint of a run that ended regularly."""
        if verdict is not None:
            self.row({})
        self._writer.close()

    def _show(self, checkpoint: Path) -> None:
        target = find_target(str(self._folder), checkpoint=checkpoint.name)
        evaluation = evaluate(target, episodes=EPISODES, seed=GAMES_SEED, modes=("stochastic",), keep=True)
        (part,) = evaluation.parts
        values = [_histogram("episodes/return", part.returns), _histogram("episodes/length", part.table.length)]
        step = int(checkpoint.name.removeprefix("step_"))
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        _, game, _ = labelled_games(evaluation)  # best, median, worst
        if isinstance(game, GameRecord):
            film = Film(lambda: pictures(game), game.steps + 1, 4.0)
        else:
            film, _ = short_film(GameDrawing(game), game.label, _PICTURES)
        image = Summary(value=[_image("episodes/median", film)])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=image))
        self._writer.flush()


def _image(tag: str, film: Film) -> Summary.Value:
    """Return a film as TensorBoard's image: an animated GIF moves there."""
    written, content = film_bytes(film, ".gif")
    image = Summary.Image(height=written.height, width=written.width, colorspace=3, encoded_image_string=content)
    return Summary.Value(tag=tag, image=image)


def _histogram(tag: str, values: NDArray[Any]) -> Summary.Value:
    counts, edges = np.histogram(values, _BINS)
    histogram = HistogramProto(
        min=float(values.min()), max=float(values.max()), num=len(values), sum=float(values.sum()),
        sum_squares=float(np.square(values, dtype=np.float64).sum()), bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )  # fmt: skip
    return Summary.Value(tag=tag, histo=histogram)
