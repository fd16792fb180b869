"""Treaties in Numba, with a thread for each region."""

import math

import numba.cuda as numba_driver
import warp_drive.numba_includes.env_config as env_config
from numba import float32, int32

SAVINGS, MITIGATION, PROPOSAL, ACCEPTANCE = range(4)


@numba_driver.jit
def NumbaTreatiesStep(
    capital,
    emissions,
    mitigation_floor,
    temperature,
    productivity,
    num_levels,
    reward_weight,
    heat_transition,
    features,
    actions,
    rewards,
    done,
    env_timestep,
    episode_length,
):
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    is_region = agent_id < env_config.wkNumberAgents
    timestep = env_timestep[env_id] + 1
    if is_region:
        level = max(actions[env_id, agent_id, MITIGATION], mitigation_floor[env_id, agent_id])
        mitigation = float32(level / float32(num_levels - 1))
        savings = float32(actions[env_id, agent_id, SAVINGS] / float32(num_levels - 1))
        gross = productivity[agent_id] * math.sqrt(capital[env_id, agent_id])
        net = gross * (float32(1) - float32(0.1) * mitigation)
        net /= float32(1) + float32(0.05) * temperature[env_id, 0]
        invested = savings * float32(0.5) * net
        emissions[env_id, agent_id] = (float32(1) - mitigation) * gross
        capital[env_id, agent_id] = float32(0.8) * capital[env_id, agent_id] + invested
        rewards[env_id, agent_id] = reward_weight[env_id, agent_id] * math.log(net - invested + float32(1))
    # Everyone has read the step counter and the temperature.
    numba_driver.syncthreads()

    if agent_id == 0:
        emitted = float32(0)
        for region in range(env_config.wkNumberAgents):
            emitted += emissions[env_id, region]
        air, ocean = temperature[env_id, 0], temperature[env_id, 1]
        air_after = heat_transition[0, 0] * air + heat_transition[0, 1] * ocean
        temperature[env_id, 0] = air_after + float32(0.01) * emitted
        temperature[env_id, 1] = heat_transition[1, 0] * air + heat_transition[1, 1] * ocean
        env_timestep[env_id] = timestep
        if timestep == episode_length:
            done[env_id] = 1
    numba_driver.syncthreads()

    if is_region:
        features[env_id, agent_id, 0] = capital[env_id, agent_id]
        features[env_id, agent_id, 1] = emissions[env_id, agent_id]
        features[env_id, agent_id, 2] = temperature[env_id, 0]
        features[env_id, agent_id, 3] = timestep / float32(episode_length)


@numba_driver.jit(
    (int32[:, :, ::1], int32[:, ::1], int32, int32, float32[:, :, ::1], int32[:, :, ::1], int32[:, :, ::1])
)
def NumbaTreatiesStepNegotiate(treaties, mitigation_floor, num_levels, tolerance, features, action_mask, actions):
    """Bind each region to its best treaty.

    A treaty needs two regions that join and offer close levels.
    """
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id < env_config.wkNumberAgents:
        offer = actions[env_id, agent_id, PROPOSAL]
        floor_level, n_treaties = 0, 0
        for partner in range(env_config.wkNumberAgents):
            theirs = actions[env_id, partner, PROPOSAL]
            both_join = actions[env_id, agent_id, ACCEPTANCE] == 1 and actions[env_id, partner, ACCEPTANCE] == 1
            if both_join and partner != agent_id and abs(offer - theirs) <= tolerance:
                treaties[env_id, agent_id, partner] = 1
                floor_level = max(floor_level, min(offer, theirs))
                n_treaties += 1
            else:
                treaties[env_id, agent_id, partner] = 0
        mitigation_floor[env_id, agent_id] = floor_level
        features[env_id, agent_id, 4] = n_treaties / float32(env_config.wkNumberAgents)
        for level in range(num_levels):
            action_mask[env_id, agent_id, num_levels + level] = 1 if level >= floor_level else 0


@numba_driver.jit
def CudaTreatiesReset(
    capital,
    capital_at_reset,
    emissions,
    emissions_at_reset,
    mitigation_floor,
    mitigation_floor_at_reset,
    treaties,
    treaties_at_reset,
    temperature,
    temperature_at_reset,
    features,
    features_at_reset,
    action_mask,
    action_mask_at_reset,
    num_levels,
    done,
    env_timestep,
):
    """Restart every environment in one launch; reward weights stay adjusted."""
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id < env_config.wkNumberAgents:
        capital[env_id, agent_id] = capital_at_reset[env_id, agent_id]
        emissions[env_id, agent_id] = emissions_at_reset[env_id, agent_id]
        mitigation_floor[env_id, agent_id] = mitigation_floor_at_reset[env_id, agent_id]
        for partner in range(env_config.wkNumberAgents):
            treaties[env_id, agent_id, partner] = treaties_at_reset[env_id, agent_id, partner]
        for feature in range(features.shape[2]):
            features[env_id, agent_id, feature] = features_at_reset[env_id, agent_id, feature]
        for choice in range(3 * num_levels + 2):
            action_mask[env_id, agent_id, choice] = action_mask_at_reset[env_id, agent_id, choice]
    if agent_id == 0:
        for box in range(2):
            temperature[env_id, box] = temperature_at_reset[env_id, box]
        done[env_id] = 0
        env_timestep[env_id] = 0
