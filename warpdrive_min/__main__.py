"""`python -m warpdrive_min`."""

from warpdrive_min.stopping import stoppable, tidy

with stoppable():
    from warpdrive_min.cli import app

    with tidy():
        app(prog_name="python -m warpdrive_min")
