import sys, time

sys.path.insert(0, "trial")
sys.path.insert(0, ".")
from pathlib import Path
import torch
from group_constants import *
from tests.support import BACKENDS
from tests.training.learning_cases import *
from warpdrive_min.training.paths.constants import Clipping, Sizes
from warpdrive_min.training.paths.cuda_c import matrix_units


def check(case, n_groups, swizzles, cuts, late, n_blocks=2):
    data = Data(case, torch.device("cpu"))
    sizes = Sizes(*case.sizes, sum(case.choices), len(case.choices), case.is_shared)
    constants = group_constants(
        sizes,
        data.space,
        data.rule().clipping,
        n_agents=case.n_agents,
        is_masked=case.is_masked,
        is_tanh=case.activation == "tanh",
        n_groups=n_groups,
        swizzles=swizzles,
    )
    constants |= {"CUTS": cuts, "LATE": late}
    t0 = time.time()
    kernels = BACKENDS["host"].compile(Path("trial/group_learn_fibres.cu"), constants)
    n, rollout = data.vector.numel(), data.rollout
    partial, room = (
        torch.zeros(n_blocks, n + N_TERMS),
        torch.full((n_blocks, constants["SHARED_BYTES"] // 4), torch.nan),
    )
    gradient, terms, values = torch.zeros(n), torch.zeros(N_TERMS), rollout["old_values"].clone()
    optional = {
        "advantages": data.taken if rollout["advantages"] is None else rollout["advantages"],
        "weights": data.weights,
        "indices": data.indices,
        "masks": rollout["masks"],
    }
    has = [optional[name] is not None for name in ("advantages", "weights", "indices")] + [True, data.taken is not None]
    given = {
        **rollout,
        **{name: torch.zeros(1, dtype=torch.int32) if each is None else each for name, each in optional.items()},
        "room": room,
        "parameters": data.vector,
        "places": torch.tensor(matrix_units.places(data.network(), data.vector), dtype=torch.int32),
        "old_values": values if case.advantages == "values" else rollout["old_values"],
        "coefficients": torch.tensor([VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP]),
        "values": values,
        "partial": partial,
        "n_rows": case.n_rows * case.n_agents,
        "n_parameters": n,
        "has": sum(1 << k for k, it in enumerate(has) if it),
    }
    arguments = [given[each.name] for each in kernels["learn"].parameters]
    t1 = time.time()
    kernels["learn"].prepare(arguments, n_blocks, constants["THREADS"])()
    n_adding = -(-(n + N_TERMS) // 32)
    adding = [torch.zeros(n_adding, constants["WARPS"], 32), partial, data.total.view(1), gradient, terms, n_blocks, n]
    kernels["add_up"].prepare(adding, n_adding, constants["THREADS"])()
    want, of_terms, want_values = data.in_float64()
    at = data.rows()
    errors = [
        ((m - i).norm() / (i.norm() + 1e-3 * want.norm())).item()
        for m, i in zip(data.layers(gradient), data.layers(want))
    ]
    print(
        case,
        f"groups {n_groups} swizzles {swizzles} cuts {cuts} late {late}: gradient {((gradient - want).norm() / want.norm()).item():.1e}",
        "layers",
        " ".join(f"{e:.0e}" for e in errors),
        f"terms {(terms - of_terms).abs().max().item():.1e} values {(values[at] - want_values).abs().max().item():.1e}",
        f"({t1 - t0:.1f} + {time.time() - t1:.1f} s)",
        flush=True,
    )


CASES = [
    Case((4, 64, 64), advantages="taken", n_rows=200),
    Case((4, 64, 64), advantages="taken", n_rows=1000),
    Case((4, 64, 64), is_clipped=False, advantages="values", n_rows=333, is_dealt=False),
    Case((7, 40, 56), (3,), activation="relu", n_rows=301, is_masked=True, is_weighted=True),
    Case((5, 56, 40), (2,), n_rows=130, value_clip=0.3, n_agents=3, advantages="taken"),
    Case((4, 64, 64), (3,), is_shared=True, n_rows=200, value_clip=0.3),
    Case((3, 64, 33), (2, 2), n_rows=150, is_masked=True, n_agents=2),
]
if __name__ == "__main__":
    which = sys.argv[1] if len(sys.argv) > 1 else "one"
    if which == "one":
        check(CASES[0], 2, True, False, False)
    else:
        for c in CASES:
            check(c, 3, True, False, False)
        for c in CASES[:3]:
            check(c, 2, True, True, True)
        check(CASES[0], 2, False, False, False)
        check(CASES[1], 3, False, True, True)
