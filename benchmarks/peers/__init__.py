"""Programs that run what others wrote, in the environment that ``make bench-setup`` makes. Nothing here imports Ray."""
