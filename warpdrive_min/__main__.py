"""`python -m warpdrive_min`."""

import gc
import sys

from warpdrive_min.stopping import clean_up_on_signal, quick_exit, stoppable

with quick_exit(), stoppable():
    gc.disable()  # what imports make stays: each collection would look at it again
    from warpdrive_min.cli import Commands, app

    if sys.argv[1:2] == ["train"]:  # other commands need none of these imports
        from warpdrive_min.commands import early

        early.start(sys.argv[1:])  # before torch is imported
    if sys.argv[1:2] and sys.argv[1] in Commands.rows:
        Commands.rows[sys.argv[1]].imported()  # a signal ends the process at once; nothing needs cleaning up yet
    gc.freeze()
    gc.enable()
    with clean_up_on_signal(Commands.exit_code(sys.argv[1:])):
        app(prog_name="python -m warpdrive_min")
