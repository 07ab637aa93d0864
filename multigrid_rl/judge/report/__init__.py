"""One HTML file about a training run or a cup: no network, nothing to install, games to look at step by step."""
