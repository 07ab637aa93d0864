"""The game: batched engine, rendering, PettingZoo face. No torch, no ray."""
