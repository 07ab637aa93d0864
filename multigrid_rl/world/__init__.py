"""The game: batched engine, rendering, PettingZoo and Gymnasium faces. No torch, no ray."""
