"""Shared parts of the classic-control environments."""
