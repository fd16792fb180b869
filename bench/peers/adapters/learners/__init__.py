"""Adapters of software that is trained until a threshold, or repeated."""
