"""Bridges to the field: environments of this project as Gymnasium's, PettingZoo's and TorchRL's, arrays as DLPack.

| module | class or function | needs |
|---|---|---|
| `warpdrive_min.bridges.gymnasium` | `GymnasiumVectorEnv`, `GymnasiumEnv` | gymnasium |
| `warpdrive_min.bridges.pettingzoo` | `PettingZooParallelEnv` | pettingzoo |
| `warpdrive_min.bridges.torchrl` | `TorchRLEnv` | torchrl |
| `warpdrive_min.bridges.dlpack` | `export`, `assign` | |

Import the module that you want; none is imported here, so that each needs its own package alone.
"""
