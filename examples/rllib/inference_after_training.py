"""Inference after training: the policy of a checkpoint plays in a plain loop over an environment."""

from tempfile import mkdtemp

from multigrid_rl import load_policy, make
from multigrid_rl.rllib import config


def main(*overrides: str, iterations: int = 50, games: int = 10) -> list[float]:
    """Train, play against a stronger opponent than in training, and return what each game has earned."""
    algorithm = config("1v1", *overrides).build_algo()
    for _ in range(iterations):
        algorithm.train()
    folder = algorithm.save_to_path(mkdtemp())
    algorithm.stop()
    policy, env = load_policy(folder), make("1v1", players={"blue_0": "blue-adept"})
    earned = []
    for game in range(games):
        (seen, _), over, total = env.reset(seed=game), False, 0.0
        while not over:
            action, _ = policy.predict(seen)  # the likeliest
            seen, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        earned.append(total)
    print(f"{sum(earned) / games:.2f} a game")
    return earned


if __name__ == "__main__":
    main()
