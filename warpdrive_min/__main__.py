"""`python -m warpdrive_min`."""

import sys

from warpdrive_min.stopping import stoppable, tidy

with stoppable():
    from warpdrive_min.cli import Commands, app

    with tidy(Commands.exit_code(sys.argv[1:])):
        app(prog_name="python -m warpdrive_min")
