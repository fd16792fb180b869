"""Judgements of records: comparisons, gates, claims and reproductions."""
