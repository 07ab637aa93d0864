"""Pictures: pages, figures, videos and a window to play in; no network and no display but that window."""

#: Games, or episodes of other packages, that a report plays with a run's policy in each mode unless told otherwise.
GAMES, EPISODES = 200, 9
