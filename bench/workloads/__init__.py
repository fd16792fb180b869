"""Families of cases: the points, set-up and check of each kind of work."""
