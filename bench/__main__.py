"""`python -m bench`."""

from warpdrive_min.stopping import stoppable

with stoppable():
    from .cli import app
    from .process.stopping import tidy

    with tidy():
        app(prog_name=f"python -m {__package__}")
