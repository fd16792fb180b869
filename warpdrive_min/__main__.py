"""`python -m warpdrive_min`."""

from warpdrive_min.cli import app

app(prog_name="python -m warpdrive_min")
