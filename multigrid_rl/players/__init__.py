"""Who sits where: the players, their catalogue, and matches. No ray."""
