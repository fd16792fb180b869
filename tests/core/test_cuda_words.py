"""Words of CUDA C from nvcc on `host`, in both styles."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.core import cuda_words
from tests.support import needs_cuda_compiler, needs_nvcc, on_each_compiler
from warpdrive_min import BACKENDS
from warpdrive_min.backends import cuda_c, cuda_source

if not BACKENDS["host"].availability().available:
    pytest.skip("found no C++ compiler", allow_module_level=True)

PAGE = Path(__file__).parents[2] / "docs" / "cuda-words.md"
SIZES = {"THREADS": 32, "ENVS_PER_BLOCK": 1, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1, "EXACT": False}
STYLES = {"WD_KERNEL": cuda_words.own_source, "__global__": cuda_words.threads_source}


def arrays(style: str) -> list[torch.Tensor]:
    """Return inputs, scratch memory of five types, and results."""
    inputs = [torch.tensor(np.array(each)) for each in (cuda_words.F, cuda_words.D)]
    inputs += [torch.tensor(cuda_words.I, dtype=torch.int32), torch.tensor(cuda_words.L)]
    words = torch.uint64 if style == "__global__" else torch.int64
    dtypes = (torch.int32, torch.uint32, words, torch.float32, torch.float64)
    n = len(cuda_words.USES)
    results = [torch.full((n,), -999.0, dtype=torch.float64), torch.full((n,), -999)]
    return [*inputs, *(torch.zeros(1, dtype=dtype) for dtype in dtypes), *results]


def source_of(folder: Path, style: str) -> Path:
    """Write the source of all words."""
    path = folder / "words.cu"
    path.write_text(STYLES[style](cuda_words.USES))
    return path


def wrong_of(numbers: torch.Tensor, integers: torch.Tensor) -> list[tuple[object, ...]]:
    """Return the uses with a wrong integer or an inaccurate float."""
    wrong: list[tuple[object, ...]] = []
    for use, number, integer in zip(cuda_words.USES, numbers.tolist(), integers.tolist(), strict=True):
        if not isinstance(use.value, float):
            is_right = (integer - use.value) % 2**64 == 0
        elif re.search(r"_r[nzdu]$|_as_|hiloint", use.word) and use.word != "__frsqrt_rn":
            is_right = number == use.value
        else:
            is_right = bool(np.isclose(number, use.value, rtol=4e-6, atol=1e-6))
        wrong += [] if is_right else [(use.word, use.expression, number, integer, use.value)]
    return wrong


@on_each_compiler
@pytest.mark.parametrize("style", STYLES)
def test_words_mean_what_they_do_on_a_gpu(compiler, tmp_path, style):
    """Words have a GPU's values: equal integers, accurate floats.

    Directed rounding is equal too.
    """
    given = arrays(style)
    BACKENDS["host"].compile(source_of(tmp_path, style), SIZES)["words"].prepare(given, 1, 32)()
    assert wrong_of(*given[-2:]) == []


@needs_nvcc
def test_nvcc_knows_the_words(tmp_path):
    """Every word compiles to PTX with nvcc.

    A cubin takes four times as long.
    """
    unit = tmp_path / "unit.cu"
    unit.write_text(cuda_c.unit(source_of(tmp_path, "__global__"), SIZES))
    words = ["nvcc", "-ptx", "-arch=sm_90", "-std=c++17", f"-I{cuda_source.ROOT}", "-o", "unit.ptx", "unit.cu"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_cuda_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("style", STYLES)
def test_words_compile_for_a_gpu(tmp_path, style):
    """Words compile for a GPU as on `pycuda`, by NVRTC if found."""
    assert cuda_c.compile_cubin(source_of(tmp_path, style), SIZES, "sm_90").exists()


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("style", STYLES)
def test_words_have_the_same_values_on_a_gpu(tmp_path, style):
    """Words have the table's values on a GPU."""
    given = [each.cuda() for each in arrays(style)]
    BACKENDS["pycuda"].compile(source_of(tmp_path, style), SIZES)["words"].prepare(given, 1, 32)()
    assert wrong_of(*(each.cpu() for each in given[-2:])) == []


def expanded(text: str) -> list[str]:
    """Expand a page's pattern: ``a{b,c}`` is ab and ac."""
    parts = re.split(r"\{([^}]*)\}", text)
    return ["".join(each) for each in itertools.product(*(part.split(",") for part in parts))]


def test_page_lists_the_words():
    """The page for authors lists exactly the tested words."""
    both, _, threads_only = PAGE.read_text().partition("## Only with a thread for each agent")
    listed = {
        word for row in re.findall(r"^\|[^|]*\|(.*)\|$", both, re.MULTILINE) for word in re.findall(r"`([^`]+)`", row)
    }
    words = {word for pattern in listed for word in expanded(pattern)}
    tested = {use.word for use in cuda_words.USES}
    assert words == tested, (sorted(words - tested), sorted(tested - words))
    assert "__shfl_sync" in threads_only
