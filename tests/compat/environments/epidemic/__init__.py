"""An epidemic in the states of a federation; see `epidemic.py`."""
