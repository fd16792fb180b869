"""The cases of single kernels: reset, return_scan, shuffle, record and launch; `env_case` has the step."""
