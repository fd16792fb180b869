"""Processes that measure points: how to start, ask and stop them."""
