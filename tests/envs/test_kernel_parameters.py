"""Parameters of the environments' kernels in their languages."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs import ENVS
from warpdrive_min.backends.base import ANY_RANK, Parameter, PythonSignature, build_module
from warpdrive_min.backends.cuda_c import declared
from warpdrive_min.environment import environment_constants

SOURCES = {
    f"{name}, {attribute.removesuffix('_sources')}": (name, attribute)
    for name, env in ENVS.items()
    for attribute in ("kernel_sources", "spread_sources")
    if hasattr(env, attribute)
}


@pytest.mark.parametrize(("name", "attribute"), SOURCES.values(), ids=SOURCES)
def test_languages_take_the_same_parameters(name, attribute):
    """Kernels have the same parameters in each language.

    Dtypes and ranks are CUDA C's.
    """
    pytest.importorskip("numba")
    env = ENVS[name]()
    blocks = 2 if attribute == "spread_sources" else 1
    env.settle_blocks(blocks, "cuda_c")
    sources = getattr(env, attribute)
    constants = {**environment_constants(env), "THREADS": 32, "ENVS_PER_BLOCK": 2, "BLOCKS_PER_ENV": blocks}
    cuda_c = declared(Path(sources["cuda_c"]), constants)
    assert ("step" in cuda_c) == (blocks == 1)
    for language in set(sources) - {"cuda_c"}:
        kernels = build_module(sources[language], constants)
        assert set(kernels) == set(cuda_c)
        for kernel, function in kernels.items():
            plain = getattr(function, "py_func", None) or getattr(function, "fn", function)
            known = {each.name: each for each in PythonSignature.of(plain).parameters}
            for want in cuda_c[kernel].parameters:
                if want.name != "n_envs" or language == "numba":
                    assert agree(known[want.name], want), f"{language} {kernel}: {known[want.name]}, {want}"


def agree(got: Parameter, want: Parameter) -> bool:
    """True if two declarations of a parameter do not contradict."""
    of_any_rank = ANY_RANK in (got.rank, want.rank) and 0 not in (got.rank, want.rank)
    ranks = {got.rank, want.rank} - {None}
    dtypes = {got.dtype, want.dtype} - {None}
    return len(dtypes) <= 1 and (len(ranks) <= 1 or of_any_rank)
