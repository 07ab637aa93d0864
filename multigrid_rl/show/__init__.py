"""Pictures: pages, figures, videos, and a page to play on. No display is needed."""

#: Games, or episodes of other packages, that a report plays by default with a run's policy in each mode.
GAMES, EPISODES = 200, 9
