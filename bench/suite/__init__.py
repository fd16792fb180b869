"""ASV's view of the cases."""
