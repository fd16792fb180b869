"""Constants of group_learn.cu."""

from pathlib import Path
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training.paths.constants import constants_of_launch, constants_of_loss

SOURCE = KERNELS / "group_learn.cu"


def shared_bytes(n_groups, n_types, swizzles):
    area = 2 * 208 * 128 if swizzles else -(-16 * (208 * 16 + 16) // 1024) * 1024
    weights = 3 * 2048 + 2 * 16384 + 4 * 64 * 4 + 32
    of_warp = 4 * (2 * 16 * 12 + 2 * 16 * (6 + n_types))
    return n_groups * area + weights + 4 * n_groups * of_warp


def group_constants(
    sizes,
    space,
    clipping,
    *,
    n_agents,
    is_masked,
    is_tanh,
    n_groups,
    swizzles=True,
    at_once=2,
    keeps=None,
    meets_first=False,
):
    return {
        **sizes.layers(is_tanh=is_tanh, is_tf32=True),
        "N_TYPES": sizes.n_types,
        "IS_SHARED": sizes.is_shared,
        "WARPS": 4 * n_groups,
        "SWIZZLES": swizzles,
        "STEPS_AT_ONCE": at_once,
        "MEETS_FIRST": meets_first,
        "KEEPS_H1": n_groups < 3 if keeps is None else keeps,
        "SHARED_BYTES": shared_bytes(n_groups, sizes.n_types, swizzles),
        **constants_of_launch(4 * n_groups),
        **constants_of_loss(space, clipping, is_masked=is_masked),
        "N_AGENTS": n_agents,
    }
