"""Measurements: points, cases, timers, statistics, records, and the machine that they describe."""
