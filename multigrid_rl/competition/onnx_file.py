"""A player as an ONNX file (https://onnx.ai), for programs without torch: browsers, other languages, small machines.

Inputs: ``observation`` (N, D), int32 tokens or float32 numbers, and for a recurrent network ``memory`` (N, S): zeros
at an episode's start. Outputs: ``action``, the likeliest, in the environment's form; ``outputs`` (N, K), logits or
parameters of the head's distribution, for drawing; the next ``memory``. The file's metadata contains the card.
"""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multigrid_rl.files import install_command, write_atomic
from multigrid_rl.models.distributions import Categorical, Gaussian
from multigrid_rl.models.heads import Head
from multigrid_rl.players.cards import PlayerError, read_card, read_network
from multigrid_rl.players.frozen import FrozenPlayer
from multigrid_rl.text import ConfigError, expected, one_line, percent
from multigrid_rl.trust import MISTAKES
from multigrid_rl.types import SeatView

#: Version of ONNX's operators: old enough for every runtime of the last years.
OPSET = 17
#: Number of observations in a file's check, and tolerance to torch's numbers: rounding errors of a diffusion's first
#: step grow in later ones.
CHECKED, CLOSE = 256, 1e-3
_SUFFIX = ".onnx"


class PlayerStep(nn.Module):
    """The computation of a player's step, for export."""

    def __init__(self, player: FrozenPlayer) -> None:
        super().__init__()
        self.network, self.distribution = player.network, player.distribution
        self.takes = None if player.card is None else player.card.taken

    def forward(self, observation: Tensor, *memory: Tensor) -> tuple[Tensor, ...]:
        """Return the likeliest actions, the policy's outputs, and a recurrent network's next memory."""
        if memory:
            outputs, _, *memory = self.network(observation, *memory)
        else:
            outputs = self.network.logits(observation)
        return self._taken(self._likeliest(outputs)), outputs, *memory

    def _taken(self, actions: Tensor) -> Tensor:
        """Return actions in the environment's form: ``TakenSignature`` in torch."""
        if self.takes is None:
            return actions
        rows = actions.reshape(-1, *self.takes.shape)
        if self.takes.start:
            rows = rows + torch.tensor(self.takes.start).reshape(self.takes.shape)
        return (rows.round() if "int" in self.takes.dtype else rows).to(getattr(torch, self.takes.dtype))

    def _likeliest(self, outputs: Tensor) -> Tensor:
        """Return (N,) or (N, C) choices or (N, A) numbers: ``mode`` and ``bounded`` of the distribution, in torch."""
        distribution = self.distribution
        if isinstance(distribution, Categorical):
            parts = torch.split(outputs, list(distribution.choices), dim=1)
            chosen = torch.stack([part.argmax(1) for part in parts], 1)
            return chosen[:, 0] if distribution.components == 1 else chosen
        if not isinstance(distribution, Gaussian | Head):
            raise PlayerError(expected("distribution", "one of this package's", type(distribution).__name__))
        low, high = torch.from_numpy(distribution.low), torch.from_numpy(distribution.high)
        if isinstance(distribution, Head):
            actions = distribution.likeliest(outputs)
        else:
            actions = outputs[:, : distribution.width]
            if distribution.bound != "clip":
                share = torch.tanh(actions) if distribution.bound == "tanh" else actions.clamp(-3, 3) / 3
                actions = low + (share + 1) / 2 * (high - low)
        return torch.minimum(torch.maximum(actions, low), high)


def player_folder(homes: Mapping[str, Path], seat: str | None) -> Path:
    """Return the folder of one player, by seat if there are several. Raises ``PlayerError``."""
    if "" in homes:
        return homes[""]
    if seat is None or seat not in homes:
        raise PlayerError(expected("--seat", f"one of {', '.join(homes)}: a file holds one player", seat))
    return homes[seat]


def write_onnx(source: Path, target: Path) -> str:
    """Write the player of a folder as a file and check it in onnxruntime; returns a line about the check.

    Raises ``ConfigError``: not the name of a new file, or the libraries are missing; ``PlayerError``: a damaged
    player, or a network that torch cannot export.
    """
    if missing := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        wanted = f"onnx and onnxruntime: {install_command('onnx')}"
        raise ConfigError(expected("--onnx", wanted, f"no {' and no '.join(missing)}"))
    if target.suffix != _SUFFIX or target.exists():
        raise ConfigError(expected("--output", f"a new file that ends with {_SUFFIX}", target))
    import onnx  # noqa: PLC0415 - an extra
    import onnxruntime  # noqa: PLC0415

    card = read_card(source)
    player = FrozenPlayer.of(card, read_network(source, card))
    step, rows = PlayerStep(player).eval(), _examples(player, card.observation.categories, card.observation.size or 0)
    names = ["memory"] * bool(player.network.state_size)
    axes = {name: {0: "games"} for name in ("observation", "action", "outputs", *names, *(f"next_{n}" for n in names))}
    options: dict[str, Any] = {"input_names": ["observation", *names], "dynamic_axes": axes, "opset_version": OPSET}
    options["output_names"] = ["action", "outputs", *(f"next_{name}" for name in names)]
    file: Any = BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # TorchScript's exporter: the newer one needs two more packages and writes the same for these networks.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(step, tuple(row[:2] for row in rows), file, dynamo=False, **options)
        except MISTAKES as error:  # a user's network may raise anything
            raise PlayerError(expected(source, "a network that torch can export", one_line(error)[:200])) from error
    model = onnx.load_model_from_string(file.getvalue())
    facts = {"card": card.model_dump_json(exclude_none=True), "seats": ", ".join(card.seats)}
    onnx.helper.set_model_props(model, facts)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    share, difference = compare(session, player, rows)
    if share < 1:
        got = f"other actions in {percent(1 - share, 1)} of {CHECKED} (outputs differ by {difference:.2g})"
        raise PlayerError(expected(source, "a network that computes the same in onnxruntime", got))
    write_atomic(target, content)
    return f"{CHECKED} random observations give the same actions in onnxruntime {onnxruntime.__version__}"


def _examples(player: FrozenPlayer, categories: list[int] | None, size: int) -> list[Tensor]:
    """Return random observations, and memories of a recurrent network."""
    rng = np.random.default_rng(0)
    if categories is not None:
        rows: Any = rng.integers(0, categories, (CHECKED, len(categories))).astype(np.int32)
    else:
        rows = rng.normal(size=(CHECKED, size)).astype(np.float32)
        with suppress(AttributeError, ZeroDivisionError):
            legal = player.network.legal
            rows[:, size - legal :] = rng.permuted(np.arange(CHECKED * legal).reshape(CHECKED, legal) % 2, axis=1)
    memory = torch.from_numpy(rng.uniform(-1, 1, (CHECKED, player.network.state_size)).astype(np.float32))
    return [torch.from_numpy(rows), memory][: 1 + bool(player.network.state_size)]


def compare(session: Any, player: FrozenPlayer, rows: list[Tensor]) -> tuple[float, float]:
    """Return the share of rows with equal actions, and the largest difference of outputs and memories."""
    names = [one.name for one in session.get_inputs()]
    inputs = {name: row.numpy() for name, row in zip(names, rows, strict=True)}
    exported, outputs, *memories = session.run(None, inputs)
    observations = rows[0].numpy().astype(np.uint8) if rows[0].dtype == torch.int32 else rows[0].numpy()
    state = rows[1] if len(rows) > 1 else player.initial_state(len(observations))
    expected_outputs, state = player.outputs(SeatView(observations, None, 0), state)
    actions = player.native_actions(player.distribution.mode(expected_outputs))
    if player.card is not None and player.card.taken is not None:
        actions = player.card.taken(actions)
    same = exported == actions if actions.dtype.kind in "iu" else np.isclose(exported, actions, rtol=CLOSE, atol=CLOSE)
    pairs = zip((outputs, *memories), (expected_outputs, *([state.numpy()] * len(memories))), strict=True)
    differences = [np.abs(a - b).max() for a, b in pairs]
    return float(same.reshape(len(observations), -1).all(axis=1).mean()), float(max(differences))
