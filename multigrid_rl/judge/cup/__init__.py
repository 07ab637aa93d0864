"""The cup: who meets whom, what comes of it, and who is best."""
