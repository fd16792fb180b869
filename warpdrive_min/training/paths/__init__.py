"""Fast paths: kernels that replace operations of torch."""
