"""Frozen players on disk: ``model.safetensors`` and ``card.json``. Nothing is ever unpickled."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from gymnasium import spaces
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from safetensors import SafetensorError
from torch import Tensor, nn

from multigrid_rl.config.scenario import EnvironmentKind, Strict, kind_named, packages
from multigrid_rl.files import check_size
from multigrid_rl.files import read_plain_file as read_plain_file  # noqa: PLC0414
from multigrid_rl.models.distributions import BOUNDS
from multigrid_rl.models.registry import ArchitectureError, import_parts, network_of, signature_of
from multigrid_rl.text import ConfigError, expected, first_error, shown
from multigrid_rl.text import PlayerError as PlayerError  # noqa: PLC0414 - others import it here
from multigrid_rl.trust import check_code
from multigrid_rl.types import MAX_CHOICES, MAX_NUMBERS, AgentSpec
from multigrid_rl.world.constants import NUM_CODES

MODEL_FILE = "model.safetensors"
CARD_FILE = "card.json"
MAX_MODEL_BYTES = 5_500_000
MAX_CARD_BYTES = 1_000_000
#: A network within these bounds is built at once, a larger one only if its file has the right shapes.
_UNITS, _LAYERS, _TOKENS, _NUMBERS = 512, 4, 200, 20_000


def _check_one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("expected printable text in one line")
    return value


#: Text that may stand in tables and messages.
OneLine = Annotated[str, AfterValidator(_check_one_line)]
Text = Annotated[str, Field(max_length=100), AfterValidator(_check_one_line)]


class PlayerFiles(NamedTuple):
    """Both files of a frozen player in memory, for a process without access to their folder. Not checked yet."""

    home: Path  # their folder, only for messages
    card: bytes
    model: bytes


#: Source of a frozen player: its folder, or its files.
Source = Path | PlayerFiles


class ObservationSignature(Strict):
    """Observations that the network reads."""

    view_size: int | None = Field(default=None, ge=1, le=99)
    #: Number of values of each token; otherwise ``size`` is the length of a vector of floats.
    categories: list[Annotated[int, Field(ge=1, le=256)]] | None = Field(default=None, min_length=1, max_length=1000)
    size: int | None = Field(default=None, ge=1, le=MAX_NUMBERS)
    #: Number of flags of legal choices at the end of the vector.
    legal: int = Field(default=0, ge=0, le=MAX_NUMBERS)
    #: Height, width and channels of the image at the start of the vector.
    image: list[Annotated[int, Field(ge=1, le=MAX_NUMBERS)]] | None = Field(default=None, min_length=3, max_length=3)

    @model_validator(mode="after")
    def _check_tokens_or_vector(self) -> "ObservationSignature":
        if (self.categories is None) == (self.size is None):
            raise ValueError("expected exactly one of categories and size")
        if self.image is not None and math.prod(self.image) + self.legal != self.size:
            raise ValueError(expected("image", f"sides of {(self.size or 0) - self.legal} numbers", self.image))
        return self

    def __str__(self) -> str:
        if self.categories is None:
            flags = f", {self.legal} of them flags of legal choices" if self.legal else ""
            return f"a vector of {self.size} numbers{flags}"
        return f"views of {self.view_size}x{self.view_size} cells, {len(self.categories)} tokens"


class BoxSignature(Strict):
    """Bounds of continuous actions; ``None``: no bound."""

    low: list[float | None] = Field(min_length=1, max_length=1000)
    high: list[float | None] = Field(min_length=1, max_length=1000)

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Lower and upper bounds (A,) float32."""
        low = np.array([-np.inf if bound is None else bound for bound in self.low], np.float32)
        return low, np.array([np.inf if bound is None else bound for bound in self.high], np.float32)


class TakenSignature(Strict):
    """Form of actions in their environment, one for each row."""

    shape: list[Annotated[int, Field(ge=1, le=1000)]] = Field(max_length=32)
    dtype: str = Field(pattern=r"^(u?int(8|16|32|64)|float(16|32|64))$")
    #: Added to the choices of each part, which are counted from 0.
    start: list[int] = Field(max_length=1000)

    def __call__(self, actions: Any) -> Any:
        """Return (N, *shape), of actions (N,), (N, C) or (N, A)."""
        rows = actions.reshape(len(actions), *self.shape)
        if self.start:
            rows = rows + np.array(self.start).reshape(self.shape)
        # A cast would cut off the fraction.
        return (np.rint(rows) if rows.dtype.kind == "f" and "int" in self.dtype else rows).astype(self.dtype)


Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
#: Bounds; or the number of choices of one seat, or of each part of an action whose parts differ.
ActionSignature = BoxSignature | Choices | list[Choices]


class EnvSignature(Strict):
    """Environment of another package that a player was trained in."""

    package: Text
    env_id: Text
    env_args: dict[str, Any] = Field(default={})
    agents: int = Field(default=1, ge=1, le=4)

    @field_validator("package")
    @classmethod
    def _check_package(cls, value: str) -> str:
        if value not in packages():
            raise ValueError(f"expected one of {', '.join(packages())}, got {value}")
        return value


class Returns(Strict):
    """Measured returns: mean of ``episodes`` episodes and its 95 % interval."""

    episodes: int
    mean: float
    low: float
    high: float
    seed: int


class Strength(Strict):
    """Measured results against one opponent: shares of ``episodes`` games decided by the win flag."""

    scenario: Text
    opponent: Text
    episodes: int
    win: float
    draw: float
    loss: float
    length_mean: float
    seed: int


class BestResponse(Strict):
    """Result of training only against a player: a lower bound of its losses."""

    scenario: Text
    env_steps: int  # of each run
    runs: int  # number of runs, over seeds and roles
    episodes: int  # fresh games of the best run; for returns, of each role
    win: float | None = None  # share of these that it won
    return_mean: float | None = None  # or the return of the best run of each role, averaged over roles
    low: float  # 95 % interval
    high: float
    exact: float | None = None  # exploitability (NashConv / seats), if it was computed
    half_steps: int | None  # environment steps until the first run won half of its games
    seed: int


class Card(Strict):
    """Description of a frozen player: all except its weights."""

    format: int = Field(default=1, ge=1, le=1)
    name: Text
    architecture: dict[str, Any]
    observation: ObservationSignature
    actions: ActionSignature
    #: Form of actions in the environment, if it differs from ``actions``.
    taken: TakenSignature | None = None
    #: Seats that the player acts for at once: more than one for a team with a joint action.
    members: int = Field(default=1, ge=1, le=4)
    scenario: Text
    #: Environment of its training, if not the red/blue-door game, and its returns there.
    env: EnvSignature | None = None
    #: Returns in another package's environment, by mode: stochastic, argmax.
    returns: dict[str, Returns] | None = None
    seats: list[Text] = Field(max_length=256)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    provenance: dict[str, Any]
    strength: list[Strength] = Field(default=[])
    #: For comparison: random against random in the same game.
    baseline: list[Strength] = Field(default=[])
    #: Result of training against it, if that was tried.
    best_response: BestResponse | None = None

    @property
    def kind(self) -> type[EnvironmentKind]:
        """The kind of environments that it was trained in."""
        return kind_named(self.env.package if self.env else None)

    @property
    def action_space(self) -> spaces.Box | spaces.MultiDiscrete:
        """Space of its actions in one step, for all its seats."""
        return space_of(self.actions, self.members)

    @model_validator(mode="after")
    def _check_bounds(self) -> "Card":
        box, legal = self.actions, self.observation.legal
        choices = sum(box) if isinstance(box, list) else box
        if legal and (legal != choices or legal >= (self.observation.size or 0)):
            raise ValueError(expected("observation.legal", "0, or as many as there are choices", legal))
        if isinstance(box, BoxSignature):
            if len(box.low) != len(box.high) or not np.less(*box.bounds).all():
                raise ValueError("actions: expected low below high, number by number")
            if self.architecture.get("bound") not in (None, *BOUNDS):
                raise ValueError(f"architecture.bound: expected {', '.join(BOUNDS)}")
        if self.taken:
            parts = math.prod(self.action_space.shape)
            if math.prod(self.taken.shape) != parts or len(self.taken.start) not in (0, parts):
                raise ValueError(expected("taken", f"a shape and starts of {parts} numbers", self.taken.model_dump()))
        return self

    @field_validator("architecture", "provenance")
    @classmethod
    def _check_readable(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.field_name == "architecture" and not isinstance(value.get("name"), str):
            raise ValueError(expected("name", "text", shown(str(value.get("name")))))
        if not isinstance(value.get("env_steps", 0), int):
            raise ValueError(expected("env_steps", "an integer", shown(str(value["env_steps"]))))
        return value


def space_of(acts: int | list[int] | BoxSignature, members: int) -> spaces.Box | spaces.MultiDiscrete:
    """Return the space of a player's actions in one step, for all its ``members`` seats."""
    if isinstance(acts, BoxSignature):
        return spaces.Box(*acts.bounds)
    return spaces.MultiDiscrete(acts if isinstance(acts, list) else [acts] * members)


def signature(agent: AgentSpec, view_size: int | None) -> dict[str, Any]:
    """Return the parts of a card that describe an agent's observations and actions."""
    size, acts = signature_of(agent.observation_space), agent.action_space
    vector = {"size": size, "legal": agent.legal, "image": list(agent.image)}
    tokens = {"view_size": view_size, "categories": size}
    observation = {key: value for key, value in vector.items() if value} if isinstance(size, int) else tokens
    if isinstance(acts, spaces.Box):
        bounds = {"low": acts.low.tolist(), "high": acts.high.tolist()}
        finite = {side: [x if np.isfinite(x) else None for x in values] for side, values in bounds.items()}
        return {"observation": observation, "actions": finite}
    choices, members = acts.nvec.tolist(), len(agent.seats)
    actions = choices[0] if len(choices) == members else choices
    return {"observation": observation, "actions": actions, "members": members}


def sha256_of(data: bytes) -> str:
    """Return the hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def packed(weights: Mapping[str, Tensor], card: dict[str, Any]) -> tuple[bytes, Card]:
    """Return a model's file and its card with size and hash. Raises :class:`PlayerError`: readers refuse them."""
    # Copied, as the format refuses weights that two layers of a network share.
    data = safetensors.torch.save({name: value.contiguous().clone() for name, value in weights.items()})
    if len(data) > MAX_MODEL_BYTES:
        smaller = "fewer units in model.hidden, or model=cnn for images, make less"
        wanted = f"weights of at most {MAX_MODEL_BYTES:,} bytes ({smaller})"
        raise PlayerError(expected("model", wanted, f"{len(data):,} bytes"))
    try:
        return data, Card(**card, bytes=len(data), sha256=sha256_of(data))
    except ValidationError as error:
        raise PlayerError(f"card of the player: {first_error(error)}") from error


def write_player(folder: Path, weights: Mapping[str, Tensor], card: dict[str, Any]) -> Card:
    """Write model and card into a new ``folder``. Raises ``FileExistsError``, and as :func:`packed`."""
    data, complete = packed(weights, card)
    folder.mkdir(parents=True, exist_ok=False)
    (folder / MODEL_FILE).write_bytes(data)
    write_card(folder, complete)
    return complete


def write_card(folder: Path, card: Card) -> None:
    """Write ``card.json``."""
    (folder / CARD_FILE).write_text(json.dumps(card.model_dump(), indent=2) + "\n", encoding="utf-8")


def read_files(folder: Path) -> PlayerFiles:
    """Read both files of a player. Raises :class:`PlayerError` for one that is too large or cannot be read."""
    return PlayerFiles(folder, _content(folder, CARD_FILE)[1], _content(folder, MODEL_FILE)[1])


def _content(source: Source, file: str, exact_bytes: int | None = None) -> tuple[Path, bytes]:
    """Return path and content of one of a player's files, of exactly ``exact_bytes`` if given."""
    max_bytes = MAX_CARD_BYTES if file == CARD_FILE else MAX_MODEL_BYTES
    if isinstance(source, Path):
        return source / file, read_plain_file(source / file, max_bytes, exact_bytes)
    path, data = source.home / file, source.card if file == CARD_FILE else source.model
    check_size(path, len(data), max_bytes, exact_bytes)
    return path, data


def read_card(source: Source) -> Card:
    """Read and check a player's card. Raises :class:`PlayerError`."""
    path, data = _content(source, CARD_FILE)
    try:
        return Card.model_validate_json(data)
    except ValidationError as error:
        raise PlayerError(f"{path}: {first_error(error)}") from error


def read_network(source: Source, card: Card) -> nn.Module:
    """Load the weights of ``card`` after checking size, hash, architecture, shapes and finiteness.

    Raises ``PlayerError``: one of them does not fit.
    """
    path, data = _content(source, MODEL_FILE, card.bytes)
    if (found := sha256_of(data)) != card.sha256:
        wanted = f"{card.sha256[:16]}... of its card"
        raise PlayerError(expected(f"{path}: sha256", wanted, f"{found[:16]}...: changed since it was written"))
    weights = _weights(path, data)
    try:
        if not _is_small(card):
            # Only shapes, without memory for them: a card may need more than this machine has.
            _check_shapes(path, _network(card, "meta"), weights)
        network = _network(card)
    except (ArchitectureError, ConfigError) as error:
        raise PlayerError(f"{path.with_name(CARD_FILE)}: {shown(str(error), 400)}") from error
    _check_shapes(path, network, weights)
    network.load_state_dict(weights)
    return network.eval()


def _network(card: Card, device: str = "cpu") -> nn.Module:
    name = card.architecture["name"]
    if ":" in name:
        check_code("architecture.name", [name], "a network of this project")
    observation = card.observation
    vector = spaces.Box(-np.inf, np.inf, (observation.size or 0,))
    space = vector if observation.categories is None else spaces.MultiDiscrete(observation.categories)
    seats, image = tuple(card.seats), tuple(observation.image or ())
    agent = AgentSpec(card.name, card.name, seats, space, card.action_space, legal=observation.legal, image=image)
    import_parts(card.architecture)
    with torch.device(device):
        return network_of(agent, {**card.architecture, "log_std": 0.0})


def _is_small(card: Card) -> bool:
    """Return whether a network is small enough to build before its file is compared: a hundred megabytes at most."""
    hidden, categories = card.architecture.get("hidden"), card.observation.categories or []
    if card.architecture.get("head") is not None or (card.observation.size or 0) > _NUMBERS:
        return False
    if not isinstance(hidden, list) or not all(type(units) is int and units <= _UNITS for units in hidden):
        return False
    return len(hidden) <= _LAYERS and len(categories) <= _TOKENS and sum(categories) <= _TOKENS * NUM_CODES


def _check_shapes(path: Path, network: nn.Module, weights: dict[str, Tensor]) -> None:
    needed = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(needed.keys() | found.keys()):
        if needed.get(name) != found.get(name):
            wanted = f"shape {needed.get(name)} of the card's network"
            raise PlayerError(expected(f"{path}: tensor {shown(name)}", wanted, found.get(name)))


def check_same(folder: Path, network: nn.Module) -> None:
    """Check that the player in ``folder`` has the tensors of a network. Raises :class:`PlayerError`."""
    path, data = _content(folder, MODEL_FILE)
    _check_shapes(path, network, _weights(path, data))


def _weights(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        tensors = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise PlayerError(expected(path, "a safetensors file", shown(str(error), 200))) from error
    weights = {}
    for name, tensor in tensors:
        if tensor["dtype"] != "F32":
            raise PlayerError(expected(f"{path}: tensor {shown(name)}", "F32", tensor["dtype"]))
        values = np.frombuffer(tensor["data"], "<f4").reshape(tensor["shape"])
        if not np.isfinite(values).all():
            raise PlayerError(expected(f"{path}: tensor {shown(name)}", "finite numbers", "NaN or infinite ones"))
        weights[name] = torch.from_numpy(values.copy())
    return weights
