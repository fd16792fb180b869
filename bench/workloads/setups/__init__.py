"""Set-ups and checks of workloads, imported to measure: they need torch."""
