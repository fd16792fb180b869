"""Check and time group_learn.cu against learn.cu on a GPU.

    PYTHONPATH=. python trial/run.py [GROUPS[STEPS][u][r][m] ...]

A variant is a number of groups (2 or 3) and the steps of z2 at once (1, 2, 4 or 8; 2 if left out). u: factors of gradients
are not swizzled; r: two groups read h1 again instead of keeping it; m: MEETS_FIRST.
Default: 3m 3 2r 2rm 2 34m 3um.
"""

import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
import torch
from group_constants import SOURCE, group_constants
from tests.support import BACKENDS
from tests.training.learning_cases import Case, Data, N_TERMS
from warpdrive_min.backends import cuda_c
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.constants import Clipping, Sizes
from warpdrive_min.training.paths.cuda_c import matrix_units
from warpdrive_min.training.paths.cuda_c.one_pass import OnePass, processors
from warpdrive_min.training.paths.fused.loss import Learned, LossRule, Rows
from warpdrive_min.training.paths.fused.network import Network

BACKEND = BACKENDS["pycuda"]
START = time.time()


class ByGroups(OnePass):
    def __init__(self, network, learned, **how):
        parameters, _, space, rollout, rule, n_rows = learned
        actions = rollout["actions"]
        n_agents = actions.shape[-2]
        is_shared = network.policy[0] is network.value[0]
        sizes = Sizes(**network.sizes, n_types=space.n_types, is_shared=is_shared)
        constants = group_constants(
            sizes,
            space,
            rule.clipping,
            n_agents=n_agents,
            is_masked=rollout["masks"] is not None,
            is_tanh=network.is_tanh,
            **how,
        )
        n_rows *= n_agents
        program = BACKEND.program(SOURCE, constants, {"learn": constants["SHARED_BYTES"]})
        n_members = parameters.shape[:-1].numel()
        super().__init__(
            program,
            learned,
            matrix_units.places(network, parameters),
            n_blocks=min(-(-n_rows // 64), -(-processors(parameters.device) // n_members)),
            n_networks=1,
            n_rows=n_rows,
        )


def given_of(name):
    steps = name[1:].rstrip("urm")
    keeps = False if "r" in name else None
    return {
        "n_groups": int(name[0]),
        "swizzles": "u" not in name,
        "at_once": int(steps or 2),
        "keeps": keeps,
        "meets_first": "m" in name,
    }


def makers(variants):
    yield "learn.cu", lambda network, learned: matrix_units.Learning(BACKEND, network, learned, precision="tf32")
    for name in variants:
        yield f"groups {name}", lambda network, learned, given=given_of(name): ByGroups(network, learned, **given)


def compile_one(name, is_clipped):
    """Compile to the cache; in a process of its own."""
    space, sizes = ActionSpace((2,), 1), Sizes(4, 64, 64, 2, 1, False)
    of = group_constants(
        sizes, space, Clipping(is_clipped, None), n_agents=1, is_masked=False, is_tanh=True, **given_of(name)
    )
    return cuda_c.compile_cubin(SOURCE, of, "sm_90")


def compile_all(variants):
    with ProcessPoolExecutor(8) as pool:
        list(pool.map(compile_one, [v for v in variants for _ in range(2)], [True, False] * len(variants)))


def check(variants):
    cases = [
        Case((4, 64, 64), advantages="taken", n_rows=4096 + 37, precision="tf32"),
        Case((4, 64, 64), advantages="values", is_clipped=False, is_dealt=False, n_rows=40_037, precision="tf32"),
        Case(
            (7, 40, 56), (3,), activation="relu", is_masked=True, is_weighted=True, n_rows=4096 + 37, precision="tf32"
        ),
        Case((4, 64, 64), advantages="taken", n_rows=4096 + 37, precision="tf32", value_clip=0.3, n_members=2),
    ]
    for number, case in enumerate(cases):
        data = Data(case)
        for name, make in makers(variants if number < 2 else variants[:1]):
            rollout, values = dict(data.rollout), data.rollout["old_values"].clone()
            if case.advantages == "values":
                rollout["old_values"] = values
            gradient = torch.zeros_like(data.vector)
            learning = make(
                data.network(), Learned(data.vector, gradient, data.space, rollout, data.rule(), case.n_rows)
            )
            indices, taken = data.indices, data.taken
            if not case.n_members:
                indices, taken = (None if each is None else each[0] for each in (indices, taken))
            found = []
            for _ in range(2):
                learning.find(Rows(indices, values, taken, data.weights, data.total))
                found.append((gradient.clone(), learning.terms.clone()))
            torch.cuda.synchronize()
            same = all(torch.equal(a, b) for a, b in zip(*found))
            for member, got in enumerate(gradient.view(-1, gradient.shape[-1])):
                want, terms, want_values = data.in_float64(member)
                error = ((got - want).norm() / want.norm()).item()
                layers = " ".join(
                    f"{((m - i).norm() / (i.norm() + 1e-3 * want.norm())).item():.0e}"
                    for m, i in zip(data.layers(got), data.layers(want))
                )
                of_terms = (learning.terms.view(N_TERMS, -1)[:, member].double() - terms).abs().max().item()
                print(
                    f"case {number}.{member} {name:10}: gradient {error:.1e} layers {layers} terms {of_terms:.1e} same bits {same}",
                    flush=True,
                )


def timed(variants, *, n_rows, n_total, is_clipped, is_dealt):
    device = torch.device("cuda")
    torch.manual_seed(0)
    shapes = [(64, 4), (64,), (64, 64), (64,), (2, 64), (2,), (64, 4), (64,), (64, 64), (64,), (1, 64), (1,)]
    parts = [torch.randn(*s, device=device) * (0.1 if len(s) == 1 else 1 / s[1] ** 0.5) for s in shapes]
    vector = torch.cat([p.flatten() for p in parts])
    layers = [p.view(s) for p, s in zip(vector.split([torch.Size(s).numel() for s in shapes]), shapes)]
    network = Network(layers[:6], layers[6:], True, False, 1.0, 0.0, None)
    rollout = {
        "observations": torch.randn(n_total, 1, 4, device=device),
        "returns": torch.randn(n_total, 1, device=device),
        "old_values": torch.randn(n_total, 1, device=device),
        "advantages": None if is_dealt else torch.randn(n_total, 1, device=device),
        "actions": torch.randint(2, (n_total, 1, 1), device=device, dtype=torch.int32),
        "masks": None,
        "log_probs": -0.7 + 0.1 * torch.randn(n_total, 1, device=device),
    }
    taken = torch.randn(n_rows, 1, device=device) if is_dealt else None
    indices = torch.randperm(n_total, device=device)[:n_rows].int() if is_dealt else None
    coefficient = torch.full((), 0.5, device=device)
    rule = LossRule(coefficient, coefficient * 0.02, 0.2, is_clipped, None)
    space, runs, times, gradients = ActionSpace((2,), 1), {}, {}, {}
    for name, make in makers(variants):
        gradient = torch.zeros_like(vector)
        runs[name] = make(network, Learned(vector, gradient, space, rollout, rule, n_rows))
        gradients[name], times[name] = gradient, []
    rows = Rows(indices, None, taken, None, torch.full((), float(n_rows), device=device))
    for turn in range(9):
        for name, learning in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            learning.find(rows)
            start.record()
            for _ in range(10):
                learning.find(rows)
            end.record()
            torch.cuda.synchronize()
            if turn:
                times[name].append(start.elapsed_time(end) * 100)
    first = gradients["learn.cu"]
    for name, each in times.items():
        apart = ((gradients[name] - first).norm() / first.norm()).item()
        print(
            f"{'PPO, gathered' if is_clipped else 'A2C, in order'}, {n_rows:,} rows, {name:10}: median {statistics.median(each):.0f} us, min {min(each):.0f} (gradient {apart:.1e} from learn.cu's)",
            flush=True,
        )


if __name__ == "__main__":
    variants = sys.argv[1:] or ["3m", "3", "2r", "2rm", "2", "34m", "3um"]
    compile_all(variants)
    print(f"compiled after {time.time() - START:.0f} s", flush=True)
    check(variants)
    print(f"{time.time() - START:.0f} s", flush=True)
    timed(variants, n_rows=2_097_152, n_total=8_388_608, is_clipped=True, is_dealt=True)
    timed(variants, n_rows=2_097_152, n_total=2_097_152, is_clipped=False, is_dealt=False)
    print(f"{time.time() - START:.0f} s", flush=True)
