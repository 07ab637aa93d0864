"""The cup: entries, pairings, ratings and ranking."""
