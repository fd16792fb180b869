"""`python -m warpdrive_min`."""

import sys

from warpdrive_min.stopping import clean_up_on_signal, stoppable

with stoppable():
    from warpdrive_min.cli import Commands, app

    if sys.argv[1:2] and sys.argv[1] in Commands.rows:
        Commands.rows[sys.argv[1]].imported()  # a signal ends the process at once; nothing needs cleaning up yet
    with clean_up_on_signal(Commands.exit_code(sys.argv[1:])):
        app(prog_name="python -m warpdrive_min")
