"""CUDA C sources: constants, declared parameters, compiler messages, the cache."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from envs import CartPole
from tests.environments import FILL
from tests.support import needs_cuda_compiler, needs_host, needs_nvcc, on_each_compiler, run_python
from tests.training.builders import limited
from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.backends import cache, cuda_c, cuda_source
from warpdrive_min.backends import host as host_module
from warpdrive_min.backends.base import ANY_RANK, Parameter
from warpdrive_min.errors import CompileError, ConfigError, DiskFullError

ROOT = Path(__file__).parents[2]
CONSTANTS = {"THREADS": 128, "ENVS_PER_BLOCK": 42, "BLOCKS_PER_ENV": 1, "N_AGENTS": 3, "EXACT": False}
WRONG = """// A comment.
WD_KERNEL(wrong)(int* x, int n_envs) {
  WD_EACH_ENV(local, env) x[env] = undeclared_name;
}
"""


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of compiled code."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(folder))
    return folder


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources passed to the C++ compiler, without probes of its flags."""
    calls: list[str] = []
    compile_shared_library = cuda_c.compile_shared_library

    def counted(text, path, compiler, flags, where, *more):
        calls.extend([where] if where != "probe" else [])
        compile_shared_library(text, path, compiler, flags, where, *more)

    monkeypatch.setattr(cuda_c, "compile_shared_library", counted)
    return calls


def write(folder: Path, text: str, name: str = "kernel.cu") -> Path:
    """Write a source and return its path."""
    path = folder / name
    path.write_text(text)
    return path


# ------------------------------------------------------------------ constants


def test_prelude_defines_each_constant_before_the_vocabulary_or_the_tables_after_it():
    """The prelude has scalars before the header, and tables after it."""
    got = cuda_c.prelude(
        {"TABLE": (1, 2), "RATE": 0.1, "N": np.int64(3), "FLAG": True, "ANGLES": [0.5, 2], "HALF": np.float32(0.5)}
    )
    assert got.splitlines() == [
        "constexpr bool FLAG = true;",
        "constexpr float HALF = 0.5f;",
        "constexpr int N = 3;",
        "constexpr float RATE = 0.10000000149011612f;",
        "#include <warpdrive_min/kernels/core.cuh>",
        "WD_TABLE float ANGLES[2] = {0.5f, 2.0f};",
        "WD_TABLE int TABLE[2] = {1, 2};",
    ]


def test_prelude_floats_read_back_as_the_same_float32():
    """Decimals in the prelude read back as the same float32.

    NumPy and Numba use that float32 too; subnormals are covered.
    """
    values = np.concatenate([np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-40, 40).repeat(200)[:200]])
    for value in [*values.astype(np.float32), np.float32(1e-45), np.finfo(np.float32).max]:
        text = cuda_c.prelude({"X": value}).splitlines()[0].split(" = ")[1].rstrip("f;")
        assert np.float32(text) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")]])
def test_prelude_refuses_what_is_not_finite(value):
    """Infinities and NaN are refused: C++ has no literal for them."""
    with pytest.raises(ConfigError, match=r"kernel constant: must be finite .got (nan|inf|-inf)"):
        cuda_c.prelude({"X": value})


# ------------------------------------------------------------------ signatures


@pytest.mark.parametrize(
    ("declaration", "want"),
    [
        ("int n", Parameter("n", "int32", 0)),
        ("const float rate", Parameter("rate", "float32", 0)),
        ("const bool flag", Parameter("flag", "bool", 0)),
        ("unsigned int word", Parameter("word", "uint32", 0)),
        ("long  long big", Parameter("big", "int64", 0)),
        ("float* x", Parameter("x", "float32", ANY_RANK)),
        ("const int * x", Parameter("x", "int32", ANY_RANK)),
        ("int const *x", Parameter("x", "int32", ANY_RANK)),
        ("const float* __restrict__ x", Parameter("x", "float32", ANY_RANK)),
        ("const float* const __restrict__ x", Parameter("x", "float32", ANY_RANK)),
        ("double *__restrict__ const x", Parameter("x", "float64", ANY_RANK)),
        ("unsigned char* mask", Parameter("mask", "uint8", ANY_RANK)),
        ("int (*x)[N_AGENTS]", Parameter("x", "int32", 2, (None, 3))),
        ("const float (*x)[N_AGENTS][4]", Parameter("x", "float32", 3, (None, 3, 4))),
        ("float (* __restrict__ x)[2 * N_AGENTS][OWN]", Parameter("x", "float32", 3, (None, None, None))),
    ],
)
def test_signature_of_one_parameter(declaration, want):
    """A parameter's declaration gives type, rank and sizes.

    Non-constant sizes stay open.
    """
    got = cuda_source.signatures(f"WD_KERNEL(k)({declaration}) {{}}", CONSTANTS, "k.cu")["k"]
    assert got.parameters == (want,)


def test_signatures_of_a_source_in_order():
    """Signatures are those of the kernels, in order.

    Comments, bodies and device functions declare nothing; both kernel kinds differ.
    """
    text = """
    // WD_KERNEL(commented)(int a) {}
    /* __global__ void commented_too(int a) {} */
    WD_FN float helper(float x) { return x; }
    WD_KERNEL(first)(int (*x)[N_AGENTS],  // two lines
                     float scale) { helper(scale); }
    extern "C" __global__ void __launch_bounds__(128) second(float* y, int n) {}
    __global__ void third() {}
    """
    got = cuda_source.signatures(text, CONSTANTS, "k.cu")
    assert {name: [parameter.name for parameter in kernel.parameters] for name, kernel in got.items()} == {
        "first": ["x", "scale"],
        "second": ["y", "n"],
        "third": [],
    }
    assert [kernel.owns_environments for kernel in got.values()] == [True, False, False]


@pytest.mark.parametrize("declaration", ["half* x", "float4 x", "std::size_t n", "float** x"])
def test_signature_with_a_type_that_cannot_be_bound_raises(declaration):
    """The error names file, kernel, parameter and the supported types."""
    with pytest.raises(
        CompileError, match=r"k.cu: kernel 'k': cannot bind the parameter .*element types are float, int"
    ):
        cuda_source.signatures(f"WD_KERNEL(k)({declaration}) {{}}", CONSTANTS, "k.cu")


# ------------------------------------------------------------------ compile errors


@needs_cuda_compiler
def test_cuda_error_is_the_compilers_with_file_and_line(tmp_path, cache_folder):
    """The CUDA compiler's error has file and line, without a GPU."""
    source = write(tmp_path, WRONG)
    with pytest.raises(CompileError) as caught:
        cuda_c.compile_cubin(source, CONSTANTS, "sm_90")
    assert f"{source}: does not compile" in str(caught.value)
    assert f"{source}(3)" in str(caught.value)
    assert "undeclared_name" in str(caught.value)
    assert list(cache_folder.iterdir()) == []


@needs_cuda_compiler
def test_cubin_is_compiled_once_without_a_gpu(cache_folder, monkeypatch):
    """A cubin is compiled once; with EXACT another one is."""
    first = cuda_c.compile_cubin(FILL["cuda_c"], CONSTANTS, "sm_90")
    assert first.read_bytes()[:4] == b"\x7fELF"
    assert b"fill" in first.read_bytes()
    written = first.stat().st_mtime_ns
    assert cuda_c.compile_cubin(FILL["cuda_c"], CONSTANTS, "sm_90") == first
    assert first.stat().st_mtime_ns == written
    assert cuda_c.compile_cubin(FILL["cuda_c"], {**CONSTANTS, "EXACT": True}, "sm_90") != first
    assert len(list(cache_folder.iterdir())) == 2


UNFINISHED = """
import importlib.machinery, time
__spec__ = importlib.machinery.ModuleSpec("cuda.core.cu13", None)  # as the package's own files do
time.sleep(0.2)
ProgramOptions = dict
class Program:
    def __init__(self, *_): self.code = b"cubin"
    def compile(self, _): return self
"""
COMPILING = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from warpdrive_min.backends.cuda_c import _nvrtc
paths = [Path(name) for name in sys.argv[1:]]
with ThreadPoolExecutor() as threads:
    list(threads.map(lambda path: _nvrtc("", Path("unit.cu"), path, "sm_90", False), paths))
print(*(path.read_text() for path in paths))
"""


def test_threads_import_the_compiler_once(tmp_path):
    """A thread waits until another one has imported NVRTC's package."""
    (tmp_path / "cuda/core").mkdir(parents=True)
    (tmp_path / "cuda/core/__init__.py").write_text(UNFINISHED)
    (tmp_path / "cuda/__init__.py").touch()
    paths = [tmp_path / "1", tmp_path / "2"]
    assert run_python("-c", COMPILING, *paths, PYTHONPATH=f"{tmp_path}:{ROOT}").split() == ["cubin", "cubin"]


def test_no_cuda_compiler_says_what_to_install(monkeypatch):
    """The error names NVRTC and nvcc if neither is found."""
    monkeypatch.setattr(cuda_c, "gpu_compiler", lambda: None)
    with pytest.raises(CompileError, match=r"no CUDA compiler; install NVRTC .* or the CUDA toolkit"):
        cuda_c.compile_cubin(FILL["cuda_c"], CONSTANTS, "sm_90")


@pytest.mark.parametrize("chosen", ["no-such-compiler", "/no/such -O2", "'", " ", "/", "/bin/false", __file__])
def test_no_cpp_compiler_names_the_variable(monkeypatch, chosen):
    """The error names a compiler in $CXX that does not work."""
    monkeypatch.setenv("CXX", chosen)
    assert cuda_c.cpu_compiler() is None
    state = BACKENDS["host"].availability()
    rule = f"found no C++ compiler: $CXX must name one that answers --version (got {chosen!r})"
    assert (state.available, state.reason) == (False, rule)
    assert "install g++ or clang++" in state.install


def test_program_that_builds_nothing_is_no_compiler(monkeypatch):
    """A program that writes no library is no compiler."""
    monkeypatch.setenv("CXX", "/bin/true")
    assert BACKENDS["host"].availability().reason == "/bin/true builds no C++17 library"


@needs_host
@pytest.mark.parametrize("arguments", ["-c", "-E", "-fsyntax-only", "-nostdlib -nodefaultlibs"])
def test_compiler_whose_libraries_cannot_be_used_is_named(monkeypatch, cache_folder, arguments):
    """A compiler that builds no loadable library is named.

    The probe loads its build: wrong output or no C++ library is an error.
    """
    monkeypatch.delenv("CXX", raising=False)
    chosen = f"{cuda_c.cpu_compiler()} {arguments}"
    monkeypatch.setenv("CXX", chosen)
    state = BACKENDS["host"].availability()
    assert not state.available
    assert re.match(rf"{re.escape(chosen)} builds (no C\+\+17 library|libraries that cannot be loaded)", state.reason)
    assert "$CXX" in state.install


def test_compiler_that_does_not_answer_is_none(monkeypatch, tmp_path):
    """A compiler that does not answer is killed after a timeout."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nsleep 1000\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(cuda_c, "PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setenv("CXX", str(compiler))
    assert "must name one that answers --version" in BACKENDS["host"].availability().reason
    with pytest.raises(CompileError, match=r"does not answer within 0.3 s"):
        cuda_c.compiler_version(str(compiler))


def test_long_command_of_a_compiler_is_shortened(monkeypatch):
    """A compiler's long command is shortened to one readable line."""
    monkeypatch.setenv("CXX", "nope " + "-DA " * 1000)
    reason = BACKENDS["host"].availability().reason
    assert "(got 'nope -DA" in reason
    assert len(reason) < 400


@needs_host
def test_compiler_on_a_full_disk_is_not_blamed(tmp_path, cache_folder):
    """A full disk is reported, with the folder."""
    source, host = write(tmp_path, "WD_KERNEL(k)(int* x, int n_envs) { x[0] = 1; }\n"), BACKENDS["host"]
    for known in (host_module._why_unusable, host_module.supported_flags):
        known.cache_clear()
    with limited(2000):
        state = host.availability()
        assert not state.available
        assert "file too large; make room, or set $TMPDIR and $WARPDRIVE_MIN_CACHE" in state.reason
    assert host.availability().available, "it is looked for again"
    with limited(2000), pytest.raises(DiskFullError, match=r"does not compile .*: file too large; make room"):
        host.compile(source, CONSTANTS)
    host.compile(source, CONSTANTS)


@on_each_compiler
def test_warnings_of_our_own_loops_are_no_errors(compiler, monkeypatch, cache_folder):
    """Warnings in our own loops are no errors under -Werror.

    Users may have it in $CXX.
    """
    monkeypatch.setenv("CXX", f"{compiler} -Werror")
    EnvWrapper(CartPole(), env_backend="host").reset()


@needs_host
def test_arguments_of_the_compiler_are_passed_on_and_recorded(tmp_path, monkeypatch, cache_folder):
    """Arguments in $CXX reach the compiler and its version."""
    compiler = tmp_path / "a compiler"
    compiler.symlink_to(shlex.split(cuda_c.cpu_compiler())[0])
    source = write(tmp_path, "WD_KERNEL(k)(int* x, int n_envs) { x[0] = GIVEN; }\n")
    for chosen, version in ((f"{compiler}", None), (f"'{compiler}' -DGIVEN=7 -g0", " -DGIVEN=7 -g0")):
        monkeypatch.setenv("CXX", chosen)
        assert BACKENDS["host"].availability().available
        if version is None:
            with pytest.raises(CompileError, match="GIVEN"):
                BACKENDS["host"].compile(source, CONSTANTS)
        else:
            assert cuda_c.compiler_version(cuda_c.cpu_compiler()).endswith(version)
            x = torch.zeros(1, dtype=torch.int32)
            BACKENDS["host"].compile(source, CONSTANTS)["k"].prepare([x, 1], 1, 128)()
            assert x.item() == 7


@on_each_compiler
@pytest.mark.parametrize("style", ["WD_KERNEL(f)(float* x, int n_envs)", 'extern "C" __global__ void f(float* x)'])
def test_error_begins_with_the_first_of_the_authors_file(tmp_path, compiler, style):
    """An error begins with the first one in the author's file.

    Neither warnings nor remarks on flags precede it.
    """
    text = f"{style} {{\n  const int n = 1 << 99;\n  x[0] = max(x[1], x[2]) + n;\n  x[1] = nowhere;\n}}\n"
    source = write(tmp_path, text)
    with pytest.raises(CompileError) as caught:
        BACKENDS["host"].compile(source, CONSTANTS)
    first = str(caught.value).splitlines()[0]
    assert re.match(rf"{source}: does not compile \(.*{re.escape(compiler)}\): {source}:4:\d+: error: .*nowhere", first)


def test_error_in_a_header_of_ours_keeps_the_way_to_it():
    """An error in our header has the author's line, too, after it."""
    output = (
        "core.cuh:9:1: warning: what is this\nIn file included from unit.cpp:3:\nwords.cuh: In instantiation of 'f':\n"
        "/user/kernel.cu:3:4:   required from here\nwords.cuh:7:8: error: no such type\n  7 | code\n"
    )
    first, *rest = cuda_c.errors_first(output).splitlines()
    assert first == "words.cuh:7:8: error: no such type"
    assert rest == ["  7 | code", *output.splitlines()[:4]]
    own = "/user/kernel.cu(5): error: identifier is undefined"
    assert cuda_c.errors_first(f"a warning\n{own}").splitlines() == [own, "a warning"]
    assert cuda_c.errors_first("ld: no space left") == "ld: no space left"


def test_long_output_is_cut_and_kept_in_a_file(cache_folder, monkeypatch):
    """Long output is shortened to head and tail, and saved."""
    text = "head" + "x" * 100_000 + "tail"
    shown = cache.excerpt(text)
    assert len(shown) < 2000
    assert shown.startswith("head")
    assert shown.endswith("tail")
    (path,) = cache_folder.iterdir()
    assert str(path) in shown
    assert path.read_text() == text
    assert cache.excerpt(shown) == shown
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", "/proc/none")
    assert "no file" in cache.excerpt(text)


@needs_host
def test_error_of_any_length_is_short(tmp_path, cache_folder):
    """A hundred errors still give a short message."""
    lines = "".join(f"  x[0] = nowhere_{n};\n" for n in range(100))
    source = write(tmp_path, f"WD_KERNEL(f)(float* x, int n_envs) {{\n{lines}}}\n")
    with pytest.raises(CompileError, match=r"characters; all are in .*\.txt") as caught:
        BACKENDS["host"].compile(source, CONSTANTS)
    assert len(str(caught.value)) < 3000


# ------------------------------------------------------------------ paths

NAMES = ['a"b', "a\\nb", "a b", "$HOME `x`", "ü 😀", "a\nb", "'", "??/", "%s #", os.fsdecode(b"\xff")]
"""Folder names that a shell, or C++, would read differently."""


@needs_host
@pytest.mark.parametrize("style", ["own", "threads"])
def test_source_compiles_in_any_folder(tmp_path, monkeypatch, style):
    """A source compiles whatever the names of the folders."""
    folder = tmp_path
    for name in NAMES:
        folder = folder / name
    folder.mkdir(parents=True)
    package = folder / cuda_source.ROOT.name / "warpdrive_min"
    package.mkdir(parents=True)
    (package / "kernels").symlink_to(cuda_source.HEADERS)
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(folder / "cache"))
    for module in (cuda_source, cuda_c):
        monkeypatch.setattr(module, "ROOT", package.parent)
        monkeypatch.setattr(module, "HEADERS", package / "kernels")
    write(folder, "constexpr int EXTRA = 3;\n", "own.cuh")
    head = "WD_KERNEL(f)(int* x)" if style == "own" else 'extern "C" __global__ void f(int* x)'
    text = f'#include "own.cuh"\n{head} {{ x[0] = max(EXTRA, 1) + sizeof(__FILE__); }}\n'
    x = torch.zeros(1, dtype=torch.int32)
    BACKENDS["host"].compile(write(folder, text), CONSTANTS)["f"].prepare([x], 1, 32)()
    assert x.item() == 4 + len(os.fsencode(folder / "kernel.cu"))
    with pytest.raises(CompileError, match=r"own.cuh|kernel.cu:2:\d+: error: .*nowhere"):
        BACKENDS["host"].compile(write(folder, text.replace("EXTRA", "nowhere")), CONSTANTS)


@needs_nvcc
def test_nvcc_compiles_in_any_folder(tmp_path, monkeypatch):
    """The compiler nvcc works in any folder.

    It starts its parts through a shell, which must not see our folder names.
    """
    folder = tmp_path
    for name in (*NAMES[:-1], "$(touch made)"):
        folder = folder / name
    folder.mkdir(parents=True)
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(folder))
    monkeypatch.setattr(cuda_c.tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.chdir(tmp_path)
    path = folder / "cubin"
    source = write(folder, "WD_KERNEL(f)(int* x) { x[0] = 1; }\n")
    cuda_c._nvcc(cuda_c.unit(source, CONSTANTS), source, path, "sm_90", exact=False)
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert not list(tmp_path.rglob("made"))


@needs_host
@pytest.mark.parametrize("bytes_", ["// é\n".encode("latin-1"), b"\xef\xbb\xbf", b"// \r\n"])
def test_source_of_any_encoding_compiles(tmp_path, bytes_):
    """Sources in Latin-1, with byte order marks or CRLF compile."""
    source = tmp_path / "kernel.cu"
    source.write_bytes(bytes_ + b"WD_KERNEL(f)(int* x) { x[0] = 1; }\n")
    assert list(BACKENDS["host"].compile(source, CONSTANTS)) == ["f"]


def test_source_that_cannot_be_read_is_named(tmp_path):
    """The error names a missing source, or a folder."""
    for source in (tmp_path / "none.cu", tmp_path):
        with pytest.raises(CompileError, match=rf"{source}: cannot be read \((no such file|is a directory)"):
            cuda_source.whole_text(source)


# ------------------------------------------------------------------ cache


@needs_host
def test_same_source_and_constants_compile_once(tmp_path, cache_folder, builds):
    """Only a changed constant, source or adjacent header compiles again."""
    host = BACKENDS["host"]
    header = write(tmp_path, "constexpr int EXTRA = 1;\n", "extra.cuh")
    source = write(tmp_path, '#include "extra.cuh"\nWD_KERNEL(k)(int* x, int n_envs) { x[0] = EXTRA + N_AGENTS; }\n')
    for _ in range(2):
        host.compile(source, CONSTANTS)
    assert len(builds) == 1
    n_probes = len(list(cache_folder.iterdir())) - 1  # about compiler features, unless an earlier test has queried them
    host.compile(source, {**CONSTANTS, "N_AGENTS": 4})
    assert len(builds) == 2
    header.write_text("constexpr int EXTRA = 2;\n")
    host.compile(source, CONSTANTS)
    assert len(builds) == 3
    source.write_text(source.read_text() + "// more\n")
    host.compile(source, CONSTANTS)
    assert len(builds) == 4
    assert len(list(cache_folder.iterdir())) == n_probes + 4


@needs_host
def test_failed_build_leaves_nothing_and_the_next_one_works(tmp_path, cache_folder):
    """A failed build leaves the cache empty, and a corrected source compiles."""
    source = write(tmp_path, WRONG)
    with pytest.raises(CompileError):
        BACKENDS["host"].compile(source, CONSTANTS)
    assert list(cache_folder.iterdir()) == []
    source.write_text(WRONG.replace("undeclared_name", "1"))
    assert list(BACKENDS["host"].compile(source, CONSTANTS)) == ["wrong"]


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    """The cache folder follows our variable, then XDG's, then home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path / "own"))
    assert cache.folder() == tmp_path / "own"
    monkeypatch.delenv("WARPDRIVE_MIN_CACHE")
    assert cache.folder() == tmp_path / "warpdrive_min"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "warpdrive_min"


BUILDER = """
import os, signal, sys, time, types
for name in ("warpdrive_min", "warpdrive_min.backends"):  # without what they import, which takes seconds
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(sys.argv[1], *name.split("."))]
from warpdrive_min.backends import cache

def make(path):
    with path.open("w") as file:
        for part in "whole":
            file.write(part)
            file.flush()
            if sys.argv[2] == "dies" and part == "o":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
    print("built")

print(cache.cached({"what": "text"}, ".txt", make).read_text())
"""
"""Script that builds a cached file slowly in a new process."""


def start_builder(mode: str) -> subprocess.Popen[str]:
    """Start a process that builds the file, or dies during it."""
    command = [sys.executable, "-c", BUILDER, str(ROOT), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_build_leaves_no_file_to_be_found(cache_folder):
    """A killed build leaves no file, and the next one succeeds."""
    killed = start_builder("dies")
    output, _ = killed.communicate(timeout=60)
    assert (killed.returncode, output) == (-9, "")
    assert not list(cache_folder.glob("*.txt"))
    output, _ = start_builder("lives").communicate(timeout=60)
    assert output == "built\nwhole\n"
    assert [path.read_text() for path in cache_folder.glob("*.txt")] == ["whole"]


def test_processes_that_build_at_once_both_see_the_whole(cache_folder):
    """Processes that build at once each read a complete file."""
    builders = [start_builder("lives") for _ in range(4)]
    outputs = [builder.communicate(timeout=60)[0] for builder in builders]
    assert [output.splitlines()[-1] for output in outputs] == ["whole"] * 4
    assert [path.read_text() for path in cache_folder.iterdir()] == ["whole"]


@needs_host
@pytest.mark.as_shipped
@pytest.mark.parametrize("exact", [False, True])
def test_nothing_less_nothing_is_no_negative_zero(tmp_path, exact):
    """0 - 0 is not -0 in branchless loops."""
    text = "WD_KERNEL(gain)(const int* taken, float* gains, int n_envs) {\n"
    text += "  WD_EACH_ENV(local, env) gains[env] = 0.f - 0.01f * static_cast<float>(taken[env] != 0);\n}\n"
    backend, taken, gains = BACKENDS["host"], torch.arange(8, dtype=torch.int32) % 2, torch.ones(8)
    kernel = backend.compile(write(tmp_path, text), {**CONSTANTS, "N_AGENTS": 1, "EXACT": exact})["gain"]
    kernel.prepare([taken, gains, 8], 1, 128)()
    assert gains.tolist() == [0.0, np.float32(-0.01)] * 4
    assert not torch.signbit(gains[::2]).any()
