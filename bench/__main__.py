"""`python -m bench`."""

from .stopping import stoppable, tidy

with stoppable():
    from .cli import app

    with tidy():
        app(prog_name=f"python -m {__package__}")
