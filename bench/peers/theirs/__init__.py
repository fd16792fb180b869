"""Adapters, a file for each package. They run in the peer's interpreter, which has neither this project nor torch."""
