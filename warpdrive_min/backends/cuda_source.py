"""Text analysis of CUDA C sources: includes, kernel signatures, vocabulary."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from warpdrive_min.backends.base import ANY_RANK, Constant, Parameter
from warpdrive_min.errors import CompileError

HEADERS = Path(__file__).parents[1] / "kernels"
CURAND = HEADERS / "curand"
"""Folder of a header that includes cuRAND's, or replaces it."""
ROOT = HEADERS.parents[1]
"""Root of include paths of the core's headers.

Its own path may have any characters; paths below it are safe in C++.
"""

MOST_TEXTS = 128
"""Most texts whose analysis is cached."""

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
"""NumPy dtypes by C element type of a parameter."""
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
"""NumPy dtypes by C element type, for kernels with agent threads.

Includes more types, as users' nvcc sources have them.
"""


class Signature(NamedTuple):
    """Name, parameters and kind of a kernel, read from its source."""

    name: str
    parameters: tuple[Parameter, ...]
    owns_environments: bool
    texts: tuple[str, ...] = ()
    """Parameters as declared in the source."""


CUDA_HEADERS = ("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h")
"""Headers of the CUDA toolkit that are empty for `host`.

`words.cuh` declares what kernels need of them.
"""
HOST_HEADERS = (
    *(f"{name}.h" for name in ("assert", "float", "limits", "math", "stdint", "stdio", "stdlib", "string", "time")),
    *(f"c{name}" for name in ("assert", "float", "limits", "math", "stdint", "stdio", "stdlib", "string", "time")),
    *CUDA_HEADERS,
)
"""Headers that nvcc finds and that are empty for NVRTC.

`nvcc.cuh` declares what kernels need of them.
"""

# ------------------------------------------------------------------ what a source includes


def read(path: Path) -> str:
    """Return a source's text; `write` restores bytes that are not UTF-8.

    Raises:
        CompileError: The file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        rule = f"cannot be read ({os.strerror(error.errno or 0).lower()})"
        raise CompileError.of(str(path), rule, do="check the path and its permissions") from error


def write(path: Path, text: str) -> None:
    """Write a unit's text for a compiler."""
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def literal(text: str) -> str:
    """Return a C string literal with octal escapes.

    Escaped are quotes, backslashes, control characters and raw bytes.
    """

    def escaped(match: re.Match[str]) -> str:
        return "".join(f"\\{byte:03o}" for byte in os.fsencode(match[0]))

    return f'"{_UNSAFE.sub(escaped, text)}"'


_UNSAFE = re.compile(r'["\\?\x00-\x1f\x7f\ud800-\udfff]')

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEAD = re.compile(r"^[ \t]*#[ \t]*if[ \t]+0\b.*?^[ \t]*#[ \t]*(?:else|endif)\b", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


@functools.lru_cache(MOST_TEXTS)
def _without_comments(text: str) -> str:
    """Return a text with a space in place of each comment."""
    return _COMMENT.sub(" ", text)


@functools.lru_cache(MOST_TEXTS)
def _code(text: str) -> str:
    """Return a text without comments and ``#if 0``."""
    return _DEAD.sub("", _without_comments(text))


@functools.lru_cache(MOST_TEXTS)
def _includes(text: str) -> list[str]:
    """Return the names of the files that a text includes."""
    return _INCLUDE.findall(text)


def whole_text(source: Path) -> str:
    """Return a source's text with included files, without comments and ``#if 0``.

    Files are searched like a compiler does: next to the including file, then next to the source. Files of `HEADERS` and
    of the system are not included, and each file is included once.
    """
    seen: set[Path] = set()

    def text_of(path: Path) -> str:
        seen.add(path)

        def included(match: re.Match[str]) -> str:
            found = _included(match[1], path.parent, source.parent)
            return "" if found is None or found in seen else text_of(found)

        return _INCLUDE.sub(included, _code(read(path)))

    return text_of(source.resolve())


def headers(text: str, folder: Path) -> list[Path]:
    """Return all files that a text includes, directly or indirectly."""
    found: set[Path] = set()
    pending = [(name, folder) for name in _includes(text)]
    while pending:
        name, beside = pending.pop()
        path = _included(name, beside, folder, HEADERS, CURAND, ROOT)
        if path is not None and path not in found:  # the compiler reports missing ones
            found.add(path)
            pending += [(inner, path.parent) for inner in _includes(read(path))]
    return sorted(found)


def needs_nvcc(source: Path) -> bool:
    """True if a source includes headers that NVRTC lacks and nvcc provides."""
    files = [source, *headers(read(source), source.parent)]
    included = [(name, path) for path in files for name in _includes(_without_comments(read(path)))]
    folders = (source.parent, HEADERS, CURAND, ROOT)
    return any(name not in HOST_HEADERS and not _included(name, path.parent, *folders) for name, path in included)


def _included(name: str, *folders: Path) -> Path | None:
    return next((path.resolve() for folder in folders if (path := folder / name).is_file()), None)


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
    """Read the signatures of a source's kernels, by name.

    Args:
        text: Source with its included files (`whole_text`).
        constants: Sizes by name, for array parameters of known size.
        where: Name of the source in messages.

    Raises:
        CompileError: A parameter has a type that cannot be bound.
    """
    found, aliases = {}, _aliases(text)
    for name, is_own, texts in _kernels(text):
        what = f"{where}: kernel {name!r}"
        parameters = tuple(_parameter(each, constants, what, is_own, aliases) for each in texts)
        found[name] = Signature(name, parameters, is_own, texts)
    return found


@functools.lru_cache(MOST_TEXTS)
def _aliases(text: str) -> dict[str, str]:
    """Return the meaning of each alias of a type."""
    aliases = {}
    for alias in _ALIAS.finditer(_without_comments(text)):
        new, old = (each for each in alias.group("new", "old", "name", "meaning", "macro", "text") if each is not None)
        aliases[new] = old
    return aliases


@functools.lru_cache(MOST_TEXTS)
def _kernels(text: str) -> list[tuple[str, bool, tuple[str, ...]]]:
    """Return each kernel's name, if it is a `WD_KERNEL`, and parameters."""
    code, found = _without_comments(text), []
    for match in _KERNEL.finditer(code):
        end = _closing(code, match.end())
        if match["template"] or not code[end + 1 :].lstrip().startswith("{"):  # a template, or no body
            continue
        parts = (" ".join(part.split()) for part in code[match.end() : end].split(","))
        texts = tuple(part for part in parts if part not in ("", "void"))
        found.append((match["own"] or match["plain"], match["own"] is not None, texts))
    return found


def with_starts(text: str, statement: str) -> str:
    """Return a source with a statement at the start of each kernel, on the same line."""
    code = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    ends = [_closing(code, match.end()) + 1 for match in _KERNEL.finditer(code)]
    for end in reversed(ends):
        start = code.find("{", end) + 1
        if start > 0 and not code[end : start - 1].strip():
            text = f"{text[:start]}{statement}{text[start:]}"
    return text


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
    """Read a parameter's declaration.

    A pointer to a type without a NumPy name is an array of any dtype, except in a `WD_KERNEL`.
    """
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
    """Replace type aliases and macros by their meaning."""
    expanded = re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), declaration)
    return expanded if expanded == declaration or depth == 0 else _expanded(expanded, aliases, depth - 1)


def _size(text: str, constants: Mapping[str, Constant]) -> int | None:
    value = constants.get(text.strip(), text.strip())
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None


# ------------------------------------------------------------------ WarpDrive's vocabulary

WORDS = ("getEnvID", "getAgentID", "get_flattened_array_index", "__sync_env_threads")
"""Functions defined in `warp_drive.cuh`."""
_WARP_DRIVE = re.compile(rf"\b(?:wk[A-Z]\w*|{'|'.join(WORDS)})\b")
N_AGENTS_BEFORE, N_ENVS_BEFORE = "num_agents", "num_envs"
"""Names of the sizes before WarpDrive 1.6."""


def uses_warp_drive_names(text: str) -> bool:
    """True if a source uses WarpDrive's functions, sizes or random states."""
    uses_sizes = _reads_undeclared(text, N_AGENTS_BEFORE) or _reads_undeclared(text, N_ENVS_BEFORE)
    return _WARP_DRIVE.search(text) is not None or uses_sizes or needs_states(text)


def warp_drive_sizes(text: str, n_envs: int, n_agents: int, blocks_per_env: int) -> dict[str, Constant]:
    """Return the WarpDrive constants that a source needs, by name.

    Empty if it uses no word of WarpDrive's vocabulary.

    Args:
        text: Source with its included files (`whole_text`).
        n_envs: Number of environments.
        n_agents: Number of agents in each.
        blocks_per_env: Blocks that share an environment.
    """
    if not uses_warp_drive_names(text):
        return {}
    sizes: dict[str, Constant] = {"wkNumberAgents": n_agents, "wkBlocksPerEnv": blocks_per_env}
    if "wkNumberEnvs" in text or needs_states(text):  # only if used, or each n_envs would need a compilation
        sizes["wkNumberEnvs"] = n_envs
    before = {N_AGENTS_BEFORE: n_agents, N_ENVS_BEFORE: n_envs}
    return sizes | {name: size for name, size in before.items() if _reads_undeclared(text, name)}


def _reads_undeclared(text: str, name: str) -> bool:
    """True if an nvcc source reads a name without declaring it."""
    types = r"(?:auto|bool|const|double|float|int|long|short|signed|size_t|unsigned|\w+_t)"
    declared = rf"\b{types}\b[\s*&]*\b{name}\b|#\s*define\s+{name}\b|\b{name}\s*=(?!=)"
    return is_for_nvcc(text) and re.search(rf"\b{name}\b", text) is not None and not re.search(declared, text)


def needs_states(text: str) -> bool:
    """True if a source reads WarpDrive's array `states` without declaring it."""
    return "curand" in text and "states[" in text and not re.search(r"\bcurandState\w*[\s*]*\bstates\b", text)


def defines(text: str, name: str) -> bool:
    """True if a source defines that constant, macro or function."""
    pattern = rf"#\s*define\s+{name}\b|\b\w+\s+{name}\s*(?:=(?!=)|\{{|\([^()]*\)\s*\{{)"
    return re.search(pattern, text) is not None


def blocks_per_env(constants: Mapping[str, Constant]) -> int:
    """Return WarpDrive's constant of blocks per environment, by default 1."""
    value = constants.get("wkBlocksPerEnv", 1)
    assert isinstance(value, int)
    return value


def is_for_nvcc(text: str) -> bool:
    """True if a source is written for nvcc, with a thread for each agent.

    ``text`` contains the included files.
    """
    return "__global__" in text
