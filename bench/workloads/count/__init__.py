"""The benchmarks' own kernel, in the three languages."""
