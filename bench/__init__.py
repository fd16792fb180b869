"""The benchmark suite: one measurement core with many views."""
