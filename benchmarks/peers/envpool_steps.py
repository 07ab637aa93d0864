"""EnvPool's environments with random actions: prints one line of JSON. Runs in the peers' environment.

python -m benchmarks.peers.envpool_steps HalfCheetah-v5 64 2 1.0
"""

import json
import sys
import time

import envpool
import numpy as np


def main() -> None:
    """Step ``NUM`` environments on ``THREADS`` threads for ``SECONDS``."""
    env_id, (count, threads), seconds = sys.argv[1], map(int, sys.argv[2:4]), float(sys.argv[4])
    env = envpool.make(env_id, env_type="gymnasium", num_envs=count, num_threads=threads, seed=0)
    env.reset()
    space, rng = env.action_space, np.random.default_rng(0)
    actions = rng.uniform(space.low, space.high, (16, count, *space.shape)).astype(space.dtype)
    env.step(actions[0])
    steps, began, worked = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        env.step(actions[steps % len(actions)])
        steps += 1
    played = steps * count
    result = {
        "wall": played / (time.perf_counter() - began),
        "processor": played / (time.process_time() - worked),
        "version": envpool.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
