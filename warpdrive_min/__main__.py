"""`python -m warpdrive_min`."""

import sys

from warpdrive_min.stopping import clean_up_on_signal, stoppable

with stoppable():
    from warpdrive_min.cli import Commands, app

    with clean_up_on_signal(Commands.exit_code(sys.argv[1:])):
        app(prog_name="python -m warpdrive_min")
