"""Disassembly: instructions of each function, their loops and pipes.

`nvdisasm` reads the code. It is a separate package that needs no toolkit and no GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from warpdrive_min.backends.cache import excerpt
from warpdrive_min.packages import install_command
from warpdrive_min.processes import run

from ..core.archive import read_toml
from ..core.errors import CompareError

BYTES: Final = 16
"""Length of an instruction from compute capability 7.0 on, bytes."""
EXTRA: Final = "static"


@dataclass(frozen=True, slots=True)
class Instruction:
    """Instruction with its place."""

    opcode: str
    """Opcode with modifiers, such as ``LDG.E.64``."""
    operands: str
    is_predicated: bool
    depth: int = 0
    """Number of enclosing loops."""
    share: float = 1.0
    """Share of its function's or loop's passes, if branches split evenly."""

    @property
    def base(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def shape(self) -> str:
        """Opcode and the numbers in its operands.

        Registers, branch targets and argument offsets are left out. So kernels with equal shapes differ only in order
        and registers.
        """
        if pipe_of(self) == "control":
            return self.opcode
        numbers = _NUMBER.findall(_PLACE.sub("", self.operands))
        return " ".join([self.opcode, *numbers])


_PLACE = re.compile(r"\bcx?\[[^\]]*\]\[[^\]]*\]|\b[UB]?[RP]\d+\b|\b(?:UR|UP|SB|B)\d+\b")
_NUMBER = re.compile(r"-?\b(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b|[+-]INF|[+-]QNAN", re.IGNORECASE)


def nvdisasm() -> str:
    """Return the disassembler's path: the package's, else from the PATH.

    Raises:
        CompareError: No disassembler is installed.
    """
    folders = [Path(folder) / "nvidia" / "cu13" / "bin" for folder in sys.path]
    found = next((path for folder in folders if (path := folder / "nvdisasm").is_file()), None)
    program = str(found) if found else shutil.which("nvdisasm")
    if program is None:
        raise CompareError(f"static: needs nvdisasm, which reads machine code (got none); {install_command(EXTRA)}")
    return program


class Function(NamedTuple):
    """Function of a compiled file."""

    code: list[Instruction]
    """Instructions in order, without the padding at the end."""
    n_bytes: int
    """Size with padding, as read, bytes."""


def disassemble(path: Path) -> dict[str, Function]:
    """Return the functions of a compiled file by name.

    Raises:
        CompareError: There is no disassembler, or it cannot read the file.
    """
    done = run([nvdisasm(), "-json", str(path)])
    if done.returncode:
        raise CompareError(
            f"static: nvdisasm cannot read {path.name} (got {excerpt(done.stderr.strip())}); {install_command(EXTRA)}"
        )
    _, functions = json.loads(done.stdout)
    read: dict[str, list[Instruction]] = {}
    for each in functions:
        if each["start"] == 0:  # before 13.5, nvdisasm also lists the slow paths within a section, by their own names
            read[each["function-name"]] = code = []
        code += [
            Instruction(found["opcode"], found.get("operands", ""), "predicate" in found)
            for found in each["sass-instructions"]
        ]
    return {name: Function(_locate(code), BYTES * len(code)) for name, code in read.items()}


# ------------------------------------------------------------------ pipes

_TABLES: Final = read_toml(Path(__file__).with_name("opcodes.toml"))
PIPES: Final[Mapping[str, str]] = _TABLES["pipes"]
"""Opcodes of each pipe."""
_PIPE_OF: Final = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}
UNKNOWN: Final = "other"
MEMORY: Final = ("global", "shared", "local")
_WIDTHS: Final[Mapping[str, int]] = _TABLES["widths"]


def pipe_of(instruction: Instruction) -> str:
    """Return the pipe of an instruction, or "other"."""
    base = instruction.base
    if instruction.opcode.startswith(("IMAD.MOV", "IMAD.SHL", "IMAD.IADD")):
        return "move" if "MOV" in instruction.opcode else "int"
    found = _PIPE_OF.get(base) or _PIPE_OF.get(base.rstrip("0123456789I"))
    if found is None and base.startswith("U"):
        return "uniform"
    return found or UNKNOWN


def width_of(instruction: Instruction) -> int:
    """Return the bytes that a memory instruction moves per thread."""
    return next((_WIDTHS[word] for word in instruction.opcode.split(".")[1:] if word in _WIDTHS), 4)


# ------------------------------------------------------------------ loops

JUMPS: Final = ("BRA", "JMP", "BRX", "JMX", "EXIT", "RET", "KILL")


def _locate(code: Sequence[Instruction]) -> list[Instruction]:
    """Strip padding; place each instruction in loops."""
    n = len(code)
    while n and code[n - 1].base == "NOP":
        n -= 1
    if n > 1 and code[n - 1].base == "BRA" and _target(code[n - 1]) == n - 1:  # padding after the last exit
        n -= 1
    return [
        replace(each, depth=depth, share=share / 2 if each.is_predicated else share)
        for each, (depth, share) in zip(code[:n], _places(code[:n]), strict=True)
    ]


def _target(jump: Instruction) -> int | None:
    """Return the target of a branch; None: only known at run time."""
    last = jump.operands.rpartition(",")[2]
    return int(last, 16) // BYTES if last.startswith("0x") else None


def _places(code: Sequence[Instruction]) -> list[tuple[int, float]]:
    """Return the depth of loops and share of passes of each instruction.

    Source: Aho, Lam, Sethi and Ullman, "Compilers", 2nd edition, 9.6: an edge to a block that dominates its start
    closes a loop.
    """
    import networkx as nx  # noqa: PLC0415  (tables of records need none of it)

    after = [_successors(code, index) for index in range(len(code))]
    jumps = [index for index, each in enumerate(code) if each.base in JUMPS]
    starts = sorted({0, *(to for jump in jumps for to in (*after[jump], jump + 1) if to < len(code))})
    ends = [*starts[1:], len(code)]
    block_of = {start: block for block, start in enumerate(starts)}
    graph = nx.DiGraph([(block, block_of[to]) for block, end in enumerate(ends) for to in after[end - 1]])
    graph.add_nodes_from(block_of.values())
    entries = [block for block in graph if block == 0 or not graph.in_degree(block)]
    rooted = nx.compose(graph, nx.DiGraph([(-1, block) for block in entries]))
    dominators = nx.DiGraph([(above, block) for block, above in nx.immediate_dominators(rooted, -1).items()])
    dominators.add_nodes_from(graph)
    loops: dict[int, set[int]] = {}
    for block, head in graph.edges:
        if block == head or head in nx.ancestors(dominators, block):
            body = nx.ancestors(nx.restricted_view(graph, [head], []), block) if block != head else ()
            loops.setdefault(head, {head}).update([block, *body])
    depth = Counter(block for body in loops.values() for block in body)
    shares = _shares(graph, loops)
    return [
        (depth[block], shares.get(block, 1.0))
        for block, (start, end) in enumerate(zip(starts, ends, strict=True))
        for _ in range(start, end)
    ]


def _shares(graph: Any, loops: Mapping[int, set[int]]) -> dict[int, float]:
    """Return the share of passes of each block; branches split evenly.

    The edges that leave a loop take all of its block's share, and so do the edges that stay inside. A loop's back edge
    takes none. Blocks of a loop with two entries have no share.
    """
    import networkx as nx  # noqa: PLC0415

    onward = nx.restricted_view(graph, [], [edge for edge in graph.edges if edge[0] in loops.get(edge[1], ())])
    shares, passed = dict[int, float](), defaultdict[int, float](float)
    with suppress(nx.NetworkXUnfeasible):
        for block in nx.topological_sort(onward):
            shares[block] = min(1.0, passed[block]) if onward.in_degree(block) else 1.0
            inner = [body for body in loops.values() if block in body]
            staying = [to for to in onward[block] if all(to in body for body in inner)]
            for to in onward[block]:
                passed[to] += shares[block] / len(staying) if to in staying else shares[block]
    return shares


def _successors(code: Sequence[Instruction], index: int) -> list[int]:
    """Return the possible next instructions after an instruction."""
    each = code[index]
    following = [index + 1] if index + 1 < len(code) else []
    if each.base not in JUMPS:
        return following
    target = _target(each)
    found = [] if target is None or target >= len(code) else [target]
    is_sure = not each.is_predicated and each.operands.count(",") == 0
    return found if is_sure else [*found, *following]


# ------------------------------------------------------------------ hashes


def shape_hash(code: Iterable[Instruction]) -> str:
    """Hash the shapes and loops of instructions, in any order."""
    counts = Counter((each.shape, each.depth) for each in code)
    return hashlib.sha256(json.dumps(sorted(counts.items())).encode()).hexdigest()[:16]


def access_hash(code: Sequence[Instruction]) -> str:
    """Hash memory instructions and the strides of indices.

    Strides are a set: a shift and a product count the same, wherever and however often the compiler places them.
    """
    counts = Counter((each.shape, each.depth) for each in code if pipe_of(each) in MEMORY)
    strides = {_stride_of(each) for each in code}
    return hashlib.sha256(json.dumps([sorted(counts.items()), sorted(strides)]).encode()).hexdigest()[:16]


def _stride_of(instruction: Instruction) -> int:
    """Return the factor of an integer product or shift; 1: neither."""
    if instruction.opcode.startswith(("IMAD", "UIMAD")):
        numbers = _HEXADECIMAL.findall(instruction.operands.split(",")[2])
        return int(numbers[0], 16) if numbers else 1
    if instruction.opcode.startswith(("LEA", "ULEA", "SHF.L", "USHF.L")):
        numbers = _HEXADECIMAL.findall(instruction.operands)
        return 1 << int(numbers[-1], 16) if numbers else 1
    return 1


_HEXADECIMAL = re.compile(r"(?<![\w\[])-?0x[0-9a-f]+")
