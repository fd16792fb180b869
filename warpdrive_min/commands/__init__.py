"""Commands of `python -m warpdrive_min`, one module each."""
