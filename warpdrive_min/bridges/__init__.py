"""Bridges to Gymnasium, PettingZoo, TorchRL and DLPack.

| module | class or function | needs |
|---|---|---|
| `warpdrive_min.bridges.gymnasium` | `GymnasiumVectorEnv`, `GymnasiumEnv`, `make`, `make_vec` | gymnasium |
| `warpdrive_min.bridges.pettingzoo` | `PettingZooParallelEnv` | pettingzoo |
| `warpdrive_min.bridges.torchrl` | `TorchRLEnv` | torchrl |
| `warpdrive_min.bridges.dlpack` | `export`, `assign` | |

Import one of these modules directly; each needs only its own package.
"""
