"""Part of the step module; it also depends on the config."""

import numba.cuda as numba_driver
import warp_drive.numba_includes.env_config


@numba_driver.jit(device=True)
def wrap(cell):
    return cell % (2 * warp_drive.numba_includes.env_config.wkNumberAgents)
