"""The recipe that a search writes for its winner is what was asked for."""

from __future__ import annotations

import yaml

from multigrid_rl.config.compose import compose
from multigrid_rl.search.search_results import recipe_of


def test_recipe_of_winner_composes_what_was_asked(tmp_path):
    asked = ["scenario=halfcheetah", "experiment=halfcheetah", "train=dagger", "expert=random"]
    (tmp_path / "winner.yaml").write_text(yaml.safe_dump(recipe_of(asked)))
    found = compose([f"experiment={tmp_path / 'winner.yaml'}"])
    assert found.model_copy(update={"experiment": "halfcheetah"}) == compose(asked)
