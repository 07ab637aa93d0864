"""Pictures: pages, figures, videos, and a page to play on. No display is needed."""

#: Games, or episodes of other packages, that a report plays with a run's policy in each mode unless told otherwise.
GAMES, EPISODES = 200, 9
