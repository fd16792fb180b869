"""Learning algorithms of policies, and their parts."""
