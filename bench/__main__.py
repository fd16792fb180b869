"""`python -m bench`."""

from bench.cli import app

app(prog_name=f"python -m {__package__}")
