"""Families of cases: points, set-up and check of each work."""
