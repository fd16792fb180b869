"""The climate in Numba: a thread for each region, as in CUDA C."""

import math

import numba.cuda as numba_driver
import warp_drive.numba_includes.env_config as env_config
from numba import float32, int32

SAVINGS, MITIGATION, EXPORT, PROPOSAL, ACCEPTANCE = range(5)
TREATY_FEATURE = 9


@numba_driver.jit(device=True)
def total(arr, env_id):
    result = float32(0)
    for region in range(env_config.wkNumberAgents):
        result += arr[env_id, region]
    return result


@numba_driver.jit(device=True)
def warm(carbon, temperature, carbon_transition, heat_transition, emissions, years, env_id):
    air, upper, lower = carbon[env_id, 0], carbon[env_id, 1], carbon[env_id, 2]
    for box in range(3):
        carbon[env_id, box] = (
            carbon_transition[0, box] * air + carbon_transition[1, box] * upper + carbon_transition[2, box] * lower
        )
    carbon[env_id, 0] += years * emissions * float32(0.27)
    forcing = float32(5.35) * math.log(carbon[env_id, 0] / float32(588))
    air, ocean = temperature[env_id, 0], temperature[env_id, 1]
    temperature[env_id, 0] = heat_transition[0, 0] * air + heat_transition[0, 1] * ocean + float32(0.1) * forcing
    temperature[env_id, 1] = heat_transition[1, 0] * air + heat_transition[1, 1] * ocean


@numba_driver.jit
def NumbaClimateStep(
    capital,
    labour,
    technology,
    intensity,
    gross_output,
    exports,
    consumption,
    emissions,
    mitigation_floor,
    carbon,
    temperature,
    labour_growth,
    technology_growth,
    vulnerability,
    num_levels,
    years_per_step,
    capital_share,
    depreciation,
    risk_aversion,
    abatement_price,
    abatement_power,
    damage_power,
    export_limit,
    reward_weight,
    carbon_transition,
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
    highest = float32(num_levels - 1)
    timestep = env_timestep[env_id] + 1
    all_labour = total(labour, env_id)

    net, invested = float32(0), float32(0)
    if is_region:
        action = actions[env_id, agent_id]
        mitigation = float32(max(action[MITIGATION], mitigation_floor[env_id, agent_id]) / highest)
        damage = vulnerability[agent_id] * temperature[env_id, 0] ** damage_power
        cost = abatement_price * mitigation**abatement_power
        gross = technology[env_id, agent_id] * capital[env_id, agent_id] ** capital_share
        gross *= (labour[env_id, agent_id] / float32(1000)) ** (float32(1) - capital_share)
        gross_output[env_id, agent_id] = gross
        net = float32(gross * (float32(1) - cost) / (float32(1) + damage))
        invested = float32(action[SAVINGS] / highest * float32(0.5) * net)
        exports[env_id, agent_id] = action[EXPORT] / highest * export_limit * (net - invested)
        emissions[env_id, agent_id] = intensity[env_id, agent_id] * (float32(1) - mitigation) * gross
    # Everyone has read the step counter, all labour and the temperature, and knows what the others export and emit.
    numba_driver.syncthreads()

    if is_region:
        people = labour[env_id, agent_id]
        # What all of them export is bought by the regions in proportion to their people.
        imported = total(exports, env_id) * people / all_labour
        consumption[env_id, agent_id] = net - invested - exports[env_id, agent_id] + imported
        kept = (float32(1) - depreciation) ** years_per_step
        capital[env_id, agent_id] = kept * capital[env_id, agent_id] + years_per_step * invested
        per_person = consumption[env_id, agent_id] / (people / float32(1000)) + float32(0.01)
        power = float32(1) - risk_aversion
        rewards[env_id, agent_id] = reward_weight[env_id, agent_id] * (per_person**power - float32(1)) / power
        labour[env_id, agent_id] = people * labour_growth[agent_id]
        technology[env_id, agent_id] *= technology_growth[agent_id]
        intensity[env_id, agent_id] *= float32(0.97)
    if agent_id == 0:
        all_emissions = total(emissions, env_id)
        warm(carbon, temperature, carbon_transition, heat_transition, all_emissions, years_per_step, env_id)
        env_timestep[env_id] = timestep
        if timestep == episode_length:
            done[env_id] = 1
    # Everyone observes the new climate.
    numba_driver.syncthreads()

    if is_region:
        feature = features[env_id, agent_id]
        feature[0] = capital[env_id, agent_id] / float32(100)
        feature[1] = labour[env_id, agent_id] / float32(1000)
        feature[2] = technology[env_id, agent_id] / float32(10)
        feature[3] = intensity[env_id, agent_id]
        feature[4] = gross_output[env_id, agent_id] / float32(100)
        feature[5] = consumption[env_id, agent_id] / float32(100)
        feature[6] = emissions[env_id, agent_id] / float32(10)
        feature[7] = temperature[env_id, 0]
        feature[8] = carbon[env_id, 0] / float32(1000)
        feature[10] = timestep / float32(episode_length)


@numba_driver.jit(
    (int32[:, :, ::1], int32[:, ::1], int32, int32, float32[:, :, ::1], int32[:, :, ::1], int32[:, :, ::1])
)
def NumbaClimateStepNegotiate(treaties, mitigation_floor, num_levels, treaty_tolerance, features, action_mask, actions):
    """Bind each region to the best of its treaties: both joined, and offered levels that lie close."""
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id < env_config.wkNumberAgents:
        offer = actions[env_id, agent_id, PROPOSAL]
        floor_level, n_treaties = 0, 0
        for partner in range(env_config.wkNumberAgents):
            theirs = actions[env_id, partner, PROPOSAL]
            both_join = actions[env_id, agent_id, ACCEPTANCE] == 1 and actions[env_id, partner, ACCEPTANCE] == 1
            if both_join and partner != agent_id and abs(offer - theirs) <= treaty_tolerance:
                treaties[env_id, agent_id, partner] = 1
                floor_level = max(floor_level, min(offer, theirs))
                n_treaties += 1
            else:
                treaties[env_id, agent_id, partner] = 0
        mitigation_floor[env_id, agent_id] = floor_level
        features[env_id, agent_id, TREATY_FEATURE] = n_treaties / float32(env_config.wkNumberAgents)
        for level in range(num_levels):
            action_mask[env_id, agent_id, num_levels + level] = 1 if level >= floor_level else 0


@numba_driver.jit
def CudaClimateReset(
    capital,
    capital_at_reset,
    labour,
    labour_at_reset,
    technology,
    technology_at_reset,
    intensity,
    intensity_at_reset,
    gross_output,
    gross_output_at_reset,
    exports,
    exports_at_reset,
    consumption,
    consumption_at_reset,
    emissions,
    emissions_at_reset,
    mitigation_floor,
    mitigation_floor_at_reset,
    treaties,
    treaties_at_reset,
    carbon,
    carbon_at_reset,
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
    """Restart every environment in one launch; the weights of the rewards stay as they were turned."""
    env_id = numba_driver.blockIdx.x
    agent_id = numba_driver.threadIdx.x
    if agent_id < env_config.wkNumberAgents:
        capital[env_id, agent_id] = capital_at_reset[env_id, agent_id]
        labour[env_id, agent_id] = labour_at_reset[env_id, agent_id]
        technology[env_id, agent_id] = technology_at_reset[env_id, agent_id]
        intensity[env_id, agent_id] = intensity_at_reset[env_id, agent_id]
        gross_output[env_id, agent_id] = gross_output_at_reset[env_id, agent_id]
        exports[env_id, agent_id] = exports_at_reset[env_id, agent_id]
        consumption[env_id, agent_id] = consumption_at_reset[env_id, agent_id]
        emissions[env_id, agent_id] = emissions_at_reset[env_id, agent_id]
        mitigation_floor[env_id, agent_id] = mitigation_floor_at_reset[env_id, agent_id]
        for partner in range(env_config.wkNumberAgents):
            treaties[env_id, agent_id, partner] = treaties_at_reset[env_id, agent_id, partner]
        for feature in range(features.shape[2]):
            features[env_id, agent_id, feature] = features_at_reset[env_id, agent_id, feature]
        for choice in range(4 * num_levels + 2):
            action_mask[env_id, agent_id, choice] = action_mask_at_reset[env_id, agent_id, choice]
    if agent_id == 0:
        for box in range(3):
            carbon[env_id, box] = carbon_at_reset[env_id, box]
        for box in range(2):
            temperature[env_id, box] = temperature_at_reset[env_id, box]
        done[env_id] = 0
        env_timestep[env_id] = 0
