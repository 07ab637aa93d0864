"""Pictures: pages, figures, videos and a window to play in; no network and no display but that window."""
