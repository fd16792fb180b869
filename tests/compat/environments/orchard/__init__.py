"""An orchard whose CUDA C lies in several files; see `orchard.py`."""
