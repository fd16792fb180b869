"""A world economy in a warming climate; see `climate.py`."""
