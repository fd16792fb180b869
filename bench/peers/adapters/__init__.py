"""Adapters: a file for each peer, run in its own interpreter."""
