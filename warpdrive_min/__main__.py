"""`python -m warpdrive_min`."""

from warpdrive_min.cli import app
from warpdrive_min.stopping import stoppable

with stoppable():
    app(prog_name="python -m warpdrive_min")
