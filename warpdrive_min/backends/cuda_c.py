"""CUDA C sources: their constants, their declared parameters, and how they are compiled for GPU and CPU."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from warpdrive_min.backends.base import ACTIONS, ANY_RANK, FLAGS, Constant, Parameter, rows_of, rows_of_steps
from warpdrive_min.backends.cache import cached
from warpdrive_min.errors import CompileError, require

HEADERS = Path(__file__).parents[1] / "kernels"
CURAND = HEADERS / "curand"
"""Folder of a header that finds cuRAND's, or takes its place."""

DTYPES = {
    "float": "float32",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "double": "float64",
    "long long": "int64",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""C element types that a parameter may have, and NumPy's names of them."""
AGENT_DTYPES = {
    **DTYPES,
    "signed": "int32",
    "signed int": "int32",
    "char": "int8",
    "signed char": "int8",
    "short": "int16",
    "unsigned short": "uint16",
    "long": "int64",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""More of them, for kernels with a thread for each agent: those that other people's sources for nvcc have."""


class Signature(NamedTuple):
    """Name, parameters and kind of one kernel, read from its source."""

    name: str
    parameters: tuple[Parameter, ...]
    owns_environments: bool


# ------------------------------------------------------------------ constants


def prelude(constants: Mapping[str, Constant]) -> str:
    """Return the C++ text that goes before a source: one definition for each constant, then the vocabulary.

    Tables without an entry are left out, as C++ has none.
    """
    present = {name: value for name, value in constants.items() if not isinstance(value, Sequence) or value}
    lines = [_definition(name, value) for name, value in sorted(present.items())]
    scalars = [line for line in lines if line.startswith("constexpr")]
    tables = [line for line in lines if not line.startswith("constexpr")]
    return "\n".join([*scalars, *_own_headers("core.cuh"), *tables, ""])


def _own_headers(*names: str) -> list[str]:
    """Return the lines that include headers of the core's by whole paths: a source may have its own of such a name."""
    return [f'#include "{HEADERS / name}"' for name in names]


def _definition(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int | np.integer):
        return f"constexpr int {name} = {value};"
    if isinstance(value, float | np.floating):
        return f"constexpr float {name} = {_float(value)};"
    is_int = all(isinstance(entry, int | np.integer) for entry in value)
    entries = ", ".join(str(entry) if is_int else _float(entry) for entry in value)
    return f"WD_TABLE {'int' if is_int else 'float'} {name}[{len(value)}] = {{{entries}}};"


def _float(value: float) -> str:
    require(np.isfinite(value), "kernel constant", "must be finite", value)
    return f"{float(np.float32(value))!r}f"  # the shortest decimal of the rounded value reads back as the same float


# ------------------------------------------------------------------ what a source includes

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEAD = re.compile(r"^[ \t]*#[ \t]*if[ \t]+0\b.*?^[ \t]*#[ \t]*(?:else|endif)\b", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def whole_text(source: Path) -> str:
    """Return a source without comments and ``#if 0``, and in the place of each ``#include`` the file that it names.

    Files are looked up where the compiler looks: beside the file that includes them, then beside the source. Those of
    `HEADERS` and of the system stay out, and a file that is included again is there once.
    """
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        seen.add(path)

        def included(match: re.Match[str]) -> str:
            found = _included(match[1], path.parent, source.parent)
            return "" if found is None or found in seen else text_of(found)

        return _INCLUDE.sub(included, _DEAD.sub("", _COMMENT.sub(" ", path.read_text())))

    return text_of(source.resolve())


def headers(text: str, folder: Path) -> list[Path]:
    """Return the files that a text includes by name, and those that they include, each once."""
    found: set[Path] = set()
    pending = [(name, folder) for name in _INCLUDE.findall(text)]
    while pending:
        name, beside = pending.pop()
        path = _included(name, beside, folder, HEADERS, CURAND)
        if path is not None and path not in found:  # a missing one is the compiler's to report
            found.add(path)
            pending += [(inner, path.parent) for inner in _INCLUDE.findall(path.read_text())]
    return sorted(found)


def needs_nvcc(source: Path) -> bool:
    """Tell whether a source includes what NVRTC does not find: headers of libraries that come with nvcc."""
    files = [source, *headers(source.read_text(), source.parent)]
    included = [(name, path) for path in files for name in _INCLUDE.findall(_COMMENT.sub(" ", path.read_text()))]
    folders = (source.parent, HEADERS, CURAND)
    return any(name not in HOST_HEADERS and not _included(name, path.parent, *folders) for name, path in included)


def _included(name: str, *folders: Path) -> Path | None:
    return next((path for folder in folders if (path := (folder / name).resolve()).is_file()), None)


# ------------------------------------------------------------------ signatures

_KERNEL = re.compile(
    r"(?:WD_KERNEL\s*\(\s*(?P<own>\w+)\s*\)"
    r"|(?P<template>template\s*<[^;{}]*>\s*)?"
    r"__global__\s+(?:__\w+__\s*\([^)]*\)\s*|\w+\s+)*?(?!__)(?P<plain>\w+))\s*\("
)
_QUALIFIER = re.compile(r"\b(?:const|volatile|struct|restrict|__restrict(?:__)?)\b|\bstd\s*::")
_PARAMETER = re.compile(
    r"(?P<type>[A-Za-z_][\w ]*?) ?"
    r"(?:\( ?\* ?(?P<array>\w+) ?\) ?(?P<sizes>(?:\[[^\]]+\] ?)+)"
    r"|\* ?(?P<pointer>\w+)"
    r"|(?<= )(?P<open>\w+) ?(?:\[[^\]]*\] ?)+"
    r"|(?<= )(?P<scalar>\w+))"
)
_ALIAS = re.compile(
    r"\btypedef\s+(?P<old>\w[\w\s*]*?)(?P<new>\w+)\s*;"
    r"|\busing\s+(?P<name>\w+)\s*=(?P<meaning>[\w\s*]+);"
    r"|^[ \t]*#[ \t]*define[ \t]+(?P<macro>\w+)(?P<text>(?:[ \t]+[A-Za-z_][\w \t*]*)?)$",
    re.MULTILINE,
)


def signatures(text: str, constants: Mapping[str, Constant], where: str) -> dict[str, Signature]:
    """Read the kernels that a source defines, by name.

    Args:
        text: The source with what it includes (`whole_text`).
        constants: Sizes by name, for parameters that are arrays of known size.
        where: The source's name in messages.

    Raises:
        CompileError: A parameter has a type that cannot be bound.
    """
    code = _COMMENT.sub(" ", text)
    aliases: dict[str, str] = {}
    for alias in _ALIAS.finditer(code):
        new, old = (each for each in alias.group("new", "old", "name", "meaning", "macro", "text") if each is not None)
        aliases[new] = old
    found = {}
    for match in _KERNEL.finditer(code):
        end = _closing(code, match.end())
        if match["template"] or not code[end + 1 :].lstrip().startswith("{"):  # no name to launch, or no kernel yet
            continue
        name, is_own = match["own"] or match["plain"], match["own"] is not None
        parts = [part for part in code[match.end() : end].split(",") if part.split() not in ([], ["void"])]
        what = f"{where}: kernel {name!r}"
        parameters = (_parameter(part, constants, what, is_own, aliases) for part in parts)
        found[name] = Signature(name, tuple(parameters), owns_environments=is_own)
    return found


def declared(source: Path, constants: Mapping[str, Constant]) -> dict[str, Signature]:
    """Read the kernels that are compiled of a source, by name; with the constants of a rollout that is its one alone.

    Raises:
        CompileError: As `signatures`, no ``rollout`` can be made of its kernels, or it has none with a policy.
    """
    whole = whole_text(source)
    found = signatures(whole, constants, str(source))
    if has_policy(constants):
        rule, do = f"has no kernel {ROLLOUT_WITH_POLICY!r}", "take the steps one by one"
        require(ROLLOUT_WITH_POLICY in found, str(source), rule, do=do, error=CompileError)
        return {ROLLOUT_WITH_POLICY: found[ROLLOUT_WITH_POLICY]}
    if not is_rollout(constants):
        return {name: each for name, each in found.items() if name not in (ROLLOUT, ROLLOUT_WITH_POLICY)}
    if ROLLOUT not in found:
        found = signatures(_rollout(whole, constants, str(source)), constants, str(source))
    return {ROLLOUT: found[ROLLOUT]}


def _closing(code: str, start: int) -> int:
    depth = 1
    for index in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[index], 0)
        if depth == 0:
            return index
    return len(code)


def _parameter(
    declaration: str, constants: Mapping[str, Constant], where: str, is_own: bool, aliases: Mapping[str, str]
) -> Parameter:
    """Read a parameter; a pointer to what NumPy has no name of is an array of any dtype, but not in a `WD_KERNEL`."""
    declared = " ".join(declaration.split())
    match = _PARAMETER.fullmatch(" ".join(_QUALIFIER.sub(" ", _expanded(declared, aliases)).split()))
    dtypes = DTYPES if is_own else AGENT_DTYPES
    dtype = match and (dtypes.get(match["type"]) or dtypes.get(match["type"].removesuffix(" int")))
    if match is None or (dtype is None and (is_own or match["scalar"])):
        raise CompileError(f"{where}: cannot bind the parameter {declared!r}; element types are {', '.join(dtypes)}")
    if match["array"]:
        sizes = tuple(_size(size, constants) for size in re.findall(r"\[([^\]]+)\]", match["sizes"]))
        return Parameter(match["array"], dtype, 1 + len(sizes), (None, *sizes))
    if match["scalar"]:
        return Parameter(match["scalar"], dtype, 0)
    return Parameter(match["pointer"] or match["open"], dtype, ANY_RANK)


def _expanded(declaration: str, aliases: Mapping[str, str], depth: int = 8) -> str:
    """Put what names of types and macros stand for in their places."""
    expanded = re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), declaration)
    return expanded if expanded == declaration or depth == 0 else _expanded(expanded, aliases, depth - 1)


def _size(text: str, constants: Mapping[str, Constant]) -> int | None:
    value = constants.get(text.strip(), text.strip())
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None


# ------------------------------------------------------------------ many steps a launch

ROLLOUT = "rollout"
"""Name of the kernel of many steps."""
ROLLOUT_WITH_POLICY = "rollout_with_policy"
"""Name of that whose actions a network draws, which a source has behind ``#if defined(WD_POLICY)``, or has not."""


def is_rollout(constants: Mapping[str, Constant]) -> bool:
    """Tell whether the constants are those of a kernel ``rollout``."""
    return "RANDOM" in constants


def has_policy(constants: Mapping[str, Constant]) -> bool:
    """Tell whether the constants are those of a kernel ``rollout_with_policy``."""
    return constants.keys() >= {"KEEP_ALL", "HIDDEN1"}


def _rollout(whole: str, constants: Mapping[str, Constant], where: str) -> str:
    """Return a kernel that takes ``n_steps`` steps, where ``step`` has become a device function of the name `_BODY`.

    A block owns its environments, so it waits between the steps for nobody else. The kernel has the parameters of
    ``step``, of arrays with a row for each step by `rows_of_steps`, and ``n_steps``; with RANDOM also ``draws``,
    ``seed`` and ``stream``, by which it draws the actions. Constants say how many entries arrays with rows of
    environments have in each (`entries_of`); on a GPU those that are written stay in shared memory (`_near`).

    Raises:
        CompileError: There is no step in one kernel whose blocks own environments.
    """
    code = _COMMENT.sub(" ", whole)
    steps = [match for match in _KERNEL.finditer(code) if match["own"] and _is_step(match["own"])]
    rule, do = "must be a WD_KERNEL named 'step', to be taken many times in a launch", "take the steps one by one"
    require(bool(steps), f"{where}: the step", rule, do=do, error=CompileError)
    end = _closing(code, steps[0].end())
    signature = signatures(whole, constants, where)[steps[0]["own"]]
    texts = [" ".join(part.split()) for part in code[steps[0].end() : end].split(",")]
    by_step, declared, given = _rows_of_steps(constants), dict[str, str](), list[str]()
    for parameter, text in zip(signature.parameters, texts, strict=True):
        name, row = parameter.name, "n_envs"
        declared[name] = re.sub(r"\bconst\b", "", text) if constants["RANDOM"] and name == ACTIONS else text
        if parameter.rank == ANY_RANK:
            row += f" * {entries_of(name)}"
        given.append(f"{name} + static_cast<long long>(wd_step) * {row}" if name in by_step else name)
    flags = [name for name in FLAGS if name in declared] if constants["KEEP_ALL"] else []
    more = ["int* draws", "const int* seed", "int stream"] if constants["RANDOM"] else []
    for text in (*more, *(f"bool* {rows_of(name)}" for name in flags), "int n_steps", "int n_envs"):
        declared.setdefault(text.split()[-1], text)
    near = _near(signature, declared, constants)
    places = {name: f"{name}_near" if name in near else name for name in (*given, "draws")}
    given = [places[name] for name in given]
    actions = given[[each.name for each in signature.parameters].index(ACTIONS)]
    is_observed = "true" if constants["KEEP_ALL"] else "wd_step == n_steps - 1"
    body = [f"{_BODY.format(signature.name)}({', '.join([is_observed, *given])});", "WD_SYNC();"]
    if constants["RANDOM"]:
        draw = f"wd_draw_actions(reinterpret_cast<wd_action*>({actions}), {places['draws']}, seed, stream, n_envs);"
        body = [draw, "WD_SYNC();", f"wd_count_draw({places['draws']}, n_envs);", *body]
    if flags:
        keep = (f"{rows_of(name)}[wd_row + env] = {places[name]}[env] != 0;" for name in flags)
        row = "const long long wd_row = static_cast<long long>(wd_step) * n_envs;"
        body += [row, f"WD_EACH_ENV(local, env) {{ {' '.join(keep)} }}"]
        body += [] if constants["RANDOM"] else ["WD_SYNC();"]  # after a draw the block waits, too
    lines = [
        *(f"WD_BRING({', '.join(each)});" for each in near.values()),
        *(["WD_SYNC();"] if near else []),
        "for (int wd_step = 0; wd_step < n_steps; ++wd_step) {",
        *(f"  {line}" for line in body),
        "}",
        *(f"WD_TAKE_BACK({', '.join(each[:3])});" for each in near.values()),
    ]
    return f"WD_KERNEL({ROLLOUT})({', '.join(declared.values())}) {{\n  " + "\n  ".join(lines) + "\n}\n"


def _rows_of_steps(constants: Mapping[str, Constant]) -> list[str]:
    """Return the arrays of which a made rollout gives ``step`` a row in each step; flags it copies to their rows."""
    return [name for name in rows_of_steps(constants) if name not in FLAGS]


def entries_of(name: str) -> str:
    """Return the name of the constant that says how many entries an array has in each environment."""
    return f"ENTRIES_{name}"


NEAR_BYTES: Final = 16_384
"""Bytes of a block's arrays that a rollout keeps in shared memory: with more, fewer blocks would run at once."""


def _near(
    signature: Signature, declared: Mapping[str, str], constants: Mapping[str, Constant]
) -> dict[str, tuple[str, ...]]:
    """Return the arrays that a made rollout keeps in shared memory meanwhile, the small ones first.

    Those are written, have rows of environments, and no row of each step. By name: the C type of an entry, the array,
    its entries in each environment, and by how many its pointer steps from one environment to the next.
    """
    by_step, found, n_bytes = _rows_of_steps(constants), dict[str, tuple[str, ...]](), 0
    arrays = {each.name: each for each in (*signature.parameters, Parameter("draws", "int32", ANY_RANK))}
    n_envs, c_types = constants["ENVS_PER_BLOCK"], {dtype: c_type for c_type, dtype in reversed(DTYPES.items())}
    sizes = {
        name: int(np.prod([constants[entries_of(name)], n_envs, np.dtype(each.dtype).itemsize]))
        for name, each in arrays.items()
        if entries_of(name) in constants and name in declared and name not in by_step
        if "const " not in declared[name]
    }
    for name in sorted(sizes, key=lambda name: sizes[name]):
        n_bytes += sizes[name]
        if n_bytes <= NEAR_BYTES:
            entries, c_type = entries_of(name), c_types[str(arrays[name].dtype)]
            found[name] = (c_type, name, entries, entries if arrays[name].rank == ANY_RANK else "1")
    return found


_BODY = "wd_one_{}"


def _is_step(name: str) -> bool:
    return name == "step" or (name.startswith("Cuda") and name.endswith("Step"))


# ------------------------------------------------------------------ WarpDrive's vocabulary

WORDS = ("getEnvID", "getAgentID", "get_flattened_array_index", "__sync_env_threads")
"""Functions of `warp_drive.cuh`."""
_WARP_DRIVE = re.compile(rf"\b(?:wk[A-Z]\w*|{'|'.join(WORDS)})\b")

MAX_CLUSTER = 8
"""Blocks of the largest thread block cluster that every GPU with clusters can run."""


def speaks_warp_drive(text: str) -> bool:
    """Tell whether a source uses a word that `warp_drive.cuh` explains, or WarpDrive's random states."""
    return _WARP_DRIVE.search(text) is not None or _needs_states(text)


def warp_drive_sizes(text: str, n_envs: int, n_agents: int, blocks_per_env: int) -> dict[str, Constant]:
    """Return WarpDrive's constants that a source needs, by name; none where it uses no word of its vocabulary.

    Args:
        text: The source with what it includes (`whole_text`).
        n_envs: Environments.
        n_agents: Agents in each.
        blocks_per_env: Blocks that share an environment.
    """
    if not speaks_warp_drive(text):
        return {}
    sizes: dict[str, Constant] = {"wkNumberAgents": n_agents, "wkBlocksPerEnv": blocks_per_env}
    if "wkNumberEnvs" in text or _needs_states(text):  # else every number of environments would compile anew
        sizes["wkNumberEnvs"] = n_envs
    return sizes


def _needs_states(text: str) -> bool:
    """Tell whether a source takes random states from WarpDrive's array `states`, and has none of that name itself."""
    return "curand" in text and "states[" in text and not re.search(r"\bcurandState\w*[\s*]*\bstates\b", text)


def _defines(text: str, name: str) -> bool:
    """Tell whether a source defines a constant, a macro or a function of a name itself."""
    pattern = rf"#\s*define\s+{name}\b|\b\w+\s+{name}\s*(?:=(?!=)|\{{|\([^()]*\)\s*\{{)"
    return re.search(pattern, text) is not None


def blocks_per_env(constants: Mapping[str, Constant]) -> int:
    """Return the blocks that share an environment by WarpDrive's constant; 1 without it."""
    value = constants.get("wkBlocksPerEnv", 1)
    assert isinstance(value, int)
    return value


def has_clusters(architecture: str) -> bool:
    """Tell whether blocks on an architecture, ``"sm_90"``, can be a thread block cluster."""
    return int(architecture.removeprefix("sm_").rstrip("af")) >= 90


def _check_cluster(source: Path, blocks: int, architecture: str) -> None:
    rule = f"blocks_per_env is the size of a thread block cluster, at most {MAX_CLUSTER}"
    require(blocks <= MAX_CLUSTER, str(source), rule, blocks, "use fewer", CompileError)
    rule = f"blocks_per_env above 1 is a thread block cluster, which needs sm_90 or newer, not {architecture}"
    require(blocks == 1 or has_clusters(architecture), str(source), rule, blocks, "use 1", CompileError)


# ------------------------------------------------------------------ compilers


def unit(source: Path, constants: Mapping[str, Constant], after: str = "") -> str:
    """Return the whole text of one translation unit; messages name the lines of ``source``.

    A source with a thread for each agent was written for nvcc and WarpDrive: it gets their names, but those that it
    defines itself.
    """
    whole, given = whole_text(source), constants
    if has_policy(constants):
        return _unit(constants, ["#define WD_POLICY", *_own_headers("policy.cuh")], source, after)
    if is_rollout(constants):
        return _unit_of_rollout(source, whole, constants, after)
    speaks = speaks_warp_drive(whole)
    before = [f"#define WD_BLOCKS {blocks_per_env(given)}"] if speaks else []
    if is_for_nvcc(whole):
        constants = {name: value for name, value in given.items() if not _defines(whole, name)}
        before += _own_headers("nvcc.cuh")
    if "curand" in whole:  # WarpDrive includes it
        before += ["#define WD_OWN_STATES"] if _needs_states(whole) else []
        before += ["#include <curand_kernel.h>"]
    if speaks:
        before += [f"#define WD_OWN_{word}" for word in WORDS if _defines(whole, word)]
        before += _own_headers("warp_drive.cuh")
    return _unit(constants, before, source, after)


def _unit(constants: Mapping[str, Constant], before: Sequence[str], source: Path, *after: str) -> str:
    return "\n".join([prelude(constants), *before, f'#line 1 "{source}"', source.read_text(), *after])


def _unit_of_rollout(source: Path, whole: str, constants: Mapping[str, Constant], after: str) -> str:
    """Return the unit of a kernel ``rollout``: the source's own, else one that is made of its ``step``.

    A source has its own behind ``#if defined(WD_ROLLOUT)``.
    """
    before = ["#define WD_ROLLOUT", *(["#define WD_DISCRETE"] if constants.get("CATEGORIES") else [])]
    before += _own_headers("rollout.cuh")
    made = []
    if ROLLOUT not in signatures(whole, constants, str(source)):
        before += ["#undef WD_KERNEL", f"#define WD_KERNEL(name) WD_FN void {_BODY.format('##name')} WD_TOLD"]
        made = ["#undef WD_KERNEL", "#define WD_KERNEL(name) WD_ENTRY(name)", _rollout(whole, constants, str(source))]
    return _unit(constants, before, source, *made, after)


def is_for_nvcc(text: str) -> bool:
    """Tell whether a source, with what it includes, is written for nvcc: its kernels have a thread for each agent."""
    return "__global__" in text


def key(text: str, source: Path, **more: object) -> dict[str, object]:
    """Return the cache key of a unit: its text, the headers that it includes, and what else may change the code."""
    return {"text": text, "headers": [(path.name, path.read_text()) for path in headers(text, source.parent)], **more}


def compile_cubin(source: Path, constants: Mapping[str, Constant], architecture: str) -> Path:
    """Compile a source for a GPU architecture (``"sm_90"``), with NVRTC, else nvcc; return the cached cubin.

    A source that needs nvcc (`needs_nvcc`) is compiled with it where it is there. Needs no GPU.

    Raises:
        CompileError: With the compiler's message, because there is no compiler, or because the architecture cannot
            run that many blocks for an environment.
    """
    text = unit(source, constants)
    _check_cluster(source, blocks_per_env(constants), architecture)
    exact = bool(constants.get("EXACT"))
    compiler = gpu_compiler()
    if compiler is not None and needs_nvcc(source):
        compiler = _nvcc_version() or compiler
    if compiler is None:
        raise CompileError(f"{source}: no CUDA compiler; {GPU_COMPILER_INSTALL}")

    def make(path: Path) -> None:
        build = _nvrtc if compiler.startswith("nvrtc") else _nvcc
        build(text, source, path, architecture, exact)

    return cached(key(text, source, architecture=architecture, exact=exact, compiler=compiler), ".cubin", make)


GPU_COMPILER_INSTALL = 'install NVRTC (pip install "cuda-core[cu13]") or the CUDA toolkit, so that nvcc is on the PATH'


@functools.cache
def gpu_compiler() -> str | None:
    """Return name and version of the CUDA compiler that would be used, or None."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  (optional)

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # noqa: BLE001  (no package, no library, or a library that cannot be loaded: try nvcc)
        return _nvcc_version()
    return f"nvrtc {major}.{minor}"


def _nvcc_version() -> str | None:
    nvcc = shutil.which("nvcc")
    return nvcc and "nvcc " + _run([nvcc, "--version"], "nvcc").splitlines()[-1]


def _nvrtc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415  (optional)

    with empty_headers(HOST_HEADERS) as folder:
        options = ProgramOptions(
            std="c++17",
            arch=architecture,
            fma=not exact,
            include_path=[*map(str, (source.parent, HEADERS, CURAND, folder, *_toolkit_headers()))],
            device_as_default_execution_space=True,  # constexpr functions need no annotation, as with nvcc
            name=str(source),
        )
        try:
            path.write_bytes(bytes(Program(text, "c++", options).compile("cubin").code))
        except Exception as error:
            raise CompileError(f"{source}: does not compile (NVRTC, {architecture}):\n{error}") from error


CUDA_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h")
"""Headers of the CUDA toolkit that `host` takes empty; what kernels need of them is in `builtins.cuh`."""
HOST_HEADERS = (
    *(f"{name}.h" for name in ("assert", "float", "limits", "math", "stdint", "stdio", "stdlib", "string", "time")),
    *(f"c{name}" for name in ("assert", "float", "limits", "math", "stdint", "stdio", "stdlib", "string", "time")),
    *CUDA_HEADERS,
)
"""Headers that nvcc finds and NVRTC takes empty; what kernels need of them is in `nvcc.cuh`."""


@contextlib.contextmanager
def empty_headers(names: Iterable[str]) -> Iterator[Path]:
    """Lend a folder of empty headers."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).touch()
        yield Path(folder)


def _toolkit_headers() -> list[Path]:
    """Return the folders that hold the CUDA toolkit's headers for kernels, such as cuRAND's."""
    roots = [Path(root) for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(name))]
    roots += [Path(nvcc).resolve().parents[1]] if (nvcc := shutil.which("nvcc")) else []
    roots += [Path(site) / "nvidia" / "cu13" for site in sys.path]
    needed = ("curand_kernel.h", "cccl/nv/target")
    folders = [root / "include" for root in roots if all((root / "include" / name).is_file() for name in needed)]
    return [each for folder in folders for each in (folder, folder / "cccl")]


def _nvcc(text: str, source: Path, path: Path, architecture: str, exact: bool) -> None:
    unit_path = path.with_suffix(".cu")
    unit_path.write_text(text)
    command = [
        "nvcc",
        "-cubin",
        f"-arch={architecture}",
        "-std=c++17",
        f"-I{source.parent}",
        f"-I{HEADERS}",
        f"-I{CURAND}",
    ]
    command += [f"--fmad={str(not exact).lower()}", "-o", str(path), str(unit_path)]
    _run(command, f"{source}: does not compile (nvcc, {architecture})")


def cpu_compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, else g++, clang++ or c++ on the PATH; None if there is none."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


@functools.cache
def compiler_version(compiler: str) -> str:
    """Return the first line of ``compiler --version``."""
    return _run([compiler, "--version"], compiler).splitlines()[0]


def compile_shared_library(
    text: str, path: Path, compiler: str, flags: Sequence[str], where: str, unit_flags: Sequence[str] = ()
) -> None:
    """Compile C++ text to a shared library, with some flags for the text that are not for the linker.

    Raises:
        CompileError: With the compiler's message.
    """
    unit_path, what = path.with_suffix(".cpp"), f"{where}: does not compile ({compiler})"
    unit_path.write_text(text)
    if unit_flags:
        object_path = path.with_suffix(".o")
        _run([compiler, *flags, *unit_flags, "-fPIC", "-c", "-o", str(object_path), str(unit_path)], what)
        unit_path = object_path
    _run([compiler, *flags, "-shared", "-fPIC", "-o", str(path), str(unit_path)], what)


def preprocessed(text: str, source: Path, compiler: str, flags: Sequence[str]) -> str:
    """Return what the preprocessor of a C++ compiler leaves of a unit; cached.

    Raises:
        CompileError: With the compiler's message.
    """

    def make(path: Path) -> None:
        with empty_headers(CUDA_HEADERS) as folder:
            unit_path = folder / "unit.cpp"
            unit_path.write_text(text)
            command = [compiler, *flags, f"-I{folder}", "-E", "-P", "-o", str(path), str(unit_path)]
            _run(command, f"{source}: does not compile ({compiler})")

    return cached(key(text, source, flags=flags, compiler=compiler_version(compiler)), ".ii", make).read_text()


def _run(command: Sequence[str], what: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(f"{what}:\n{result.stderr.strip() or result.stdout.strip()}")
    return result.stdout
