"""Ids for ``gymnasium.make`` and ``make_vec``, registered by ``import multigrid_rl.gym``, as in other packages.

The only import with a side effect; it reads only names, and ``make`` imports the environments.
"""

import re

from gymnasium.envs.registration import register, registry

from multigrid_rl.files import data_root

_BLUE = re.compile(r"^\s+blue:\s*([0-9]+)", re.MULTILINE)


def sides() -> dict[str, tuple[str, ...]]:
    """Return the teams of every scenario of the red/blue-door game, by its name."""
    teams: dict[str, tuple[str, ...]] = {}
    for file in sorted((data_root() / "configs" / "scenario").glob("*.yaml")):
        # Not parsed: yaml and its validation would take longer than importing Gymnasium.
        if (blue := _BLUE.search(file.read_text(encoding="utf-8"))) is not None:
            teams[file.stem] = ("red",) if blue[1] == "0" else ("red", "blue")
    return teams


def register_envs() -> list[str]:
    """Make every scenario known to Gymnasium and return the ids.

    ``multigrid_rl/1v1-red-v0`` is the first red seat of 1v1, ``-blue-v0`` the first blue one, ``multigrid_rl/1v1-v0``
    red, too::

        env = gymnasium.make("multigrid_rl/1v1-red-v0", players={"blue_0": "hunter"}, render_mode="rgb_array")
        envs = gymnasium.make_vec("multigrid_rl/1v1-red-v0", num_envs=1024, players={"blue_0": "random"})

    Keyword arguments are those of ``SeatEnv`` and ``SeatVectorEnv``. Calling it again has no effect.
    """
    ids = []
    for scenario, teams in sides().items():
        for name, team in ((scenario, "red"), *((f"{scenario}-{team}", team) for team in teams)):
            ids.append(f"multigrid_rl/{name}-v0")
            if ids[-1] not in registry:
                register(
                    ids[-1],
                    "multigrid_rl.players.gymnasium_env:SeatEnv",
                    vector_entry_point="multigrid_rl.players.gymnasium_env:SeatVectorEnv",
                    kwargs={"scenario": scenario, "seat": f"{team}_0"},
                )
    return ids


register_envs()
