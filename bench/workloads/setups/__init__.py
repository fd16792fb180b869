"""Set-ups and checks of workloads. They import torch, so a case imports them to measure a point."""
