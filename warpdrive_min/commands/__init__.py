"""The commands of `python -m warpdrive_min`, one module each."""
