"""`python -m bench`."""

import sys

from warpdrive_min.stopping import stoppable

with stoppable():
    from .cli import Commands, app
    from .process.stopping import tidy

    if sys.argv[1:2] and sys.argv[1] in Commands.rows:
        Commands.rows[sys.argv[1]].imported()  # a signal ends the process at once; nothing needs cleaning up yet
    with tidy(Commands.exit_code(sys.argv[1:])):
        app(prog_name=f"python -m {__package__}")
