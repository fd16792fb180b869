"""Disassembly: instructions of each function, their loops and pipes.

`nvdisasm` reads the code. It is a separate package that needs no toolkit and no GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Final, NamedTuple

from warpdrive_min.backends.cache import excerpt
from warpdrive_min.packages import install_command
from warpdrive_min.processes import run

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

PIPES: Final[Mapping[str, str]] = {
    "fp32": "FADD FMUL FFMA FMNMX FSEL FSET FSETP FCHK FSWZADD",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "half": "HADD HFMA HMUL HSET HSETP HMNMX",
    "tensor": "HMMA IMMA DMMA BMMA QGMMA HGMMA IGMMA BGMMA WARPGROUP UTCHMMA",
    "sfu": "MUFU F2F F2I I2F FRND F2FP POPC FLO BREV I2FP F2IP",
    "int": (
        "IADD IMAD IMUL ISETP IABS IMNMX ISCADD IDP LEA LOP LOP3 SHF SHL SHR SEL PRMT SGXT BMSK VIADD VIMNMX "
        "VABSDIFF VIADDMNMX VHMNMX PLOP3 PSETP P2R R2P I2I CREDUX"
    ),
    "move": "MOV CS2R S2R S2UR R2UR MOVM CSMTEST LEPC",
    "uniform": "U",
    "global": "LDG STG ATOMG ATOM RED LD ST LDGSTS REDG UBLKCP UTMALDG UTMASTG",
    "shared": "LDS STS ATOMS LDSM STSM STAS",
    "local": "LDL STL",
    "constant": "LDC LDCU ULDC",
    "warp": "SHFL VOTE VOTEU MATCH REDUX ELECT",
    "barrier": "BAR MEMBAR ERRBAR DEPBAR LDGDEPBAR SYNCS CCTL UCGABAR FENCE ARRIVES ACQBULK",
    "control": (
        "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK WARPSYNC YIELD BMOV NANOSLEEP KILL RPCMOV BPT PREEXIT "
        "BRXU WARPSYNCCOLLECTIVE"
    ),
    "none": "NOP",
}
"""Opcodes of each pipe.

For ``half`` and other opcodes followed by a digit, such as ``HFMA2``, only the letters."""
_PIPE_OF: Final = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}
UNKNOWN: Final = "other"
MEMORY: Final = ("global", "shared", "local")
_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


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
    after = [_successors(code, index) for index in range(len(code))]
    starts = sorted(
        {0, *(to for index, each in enumerate(after) if code[index].base in JUMPS for to in each)}
        | {index + 1 for index in range(len(code) - 1) if code[index].base in JUMPS}
    )
    block_of = {start: number for number, start in enumerate(starts)}
    ends = [*starts[1:], len(code)]
    edges = [[block_of[to] for to in after[end - 1] if to in block_of] for end in ends]
    before: list[list[int]] = [[] for _ in starts]
    for block, successors in enumerate(edges):
        for to in successors:
            before[to].append(block)
    everything = (1 << len(starts)) - 1
    dominators = [1 << block if block == 0 or not before[block] else everything for block in range(len(starts))]
    last: list[int] = []
    while last != dominators:
        last = [*dominators]
        for block, sources in enumerate(before):
            if block and sources:
                dominators[block] = reduce(and_, (dominators[each] for each in sources)) | 1 << block
    loops: dict[int, set[int]] = {}
    for block, successors in enumerate(edges):
        for head in successors:
            if dominators[block] >> head & 1:
                loops.setdefault(head, {head}).update(_loop_body(head, block, before))
    depth = Counter(block for body in loops.values() for block in body)
    shares = _shares(edges, dominators, loops)
    return [
        (depth[block], shares[block])
        for block, (start, end) in enumerate(zip(starts, ends, strict=True))
        for _ in range(start, end)
    ]


def _shares(edges: Sequence[Sequence[int]], dominators: Sequence[int], loops: Mapping[int, set[int]]) -> list[float]:
    """Return the share of passes of each block; branches split evenly.

    The edges that leave a loop take all of its block's share, and so do the edges that stay inside. A loop's back edge
    takes none.
    """
    shares = [0.0] * len(edges)
    waiting = [0] * len(edges)
    onward = [[to for to in successors if not dominators[block] >> to & 1] for block, successors in enumerate(edges)]
    for successors in onward:
        for to in successors:
            waiting[to] += 1
    pending = [block for block, n in enumerate(waiting) if not n]
    for block in pending:
        shares[block] = 1.0
    while pending:
        block = pending.pop()
        inner = [body for body in loops.values() if block in body]
        staying = [to for to in onward[block] if all(to in body for body in inner)]
        for to in onward[block]:
            part = shares[block] / len(staying) if to in staying else shares[block]
            shares[to] = min(1.0, shares[to] + part)
            waiting[to] -= 1
            if not waiting[to]:
                pending.append(to)
    return [1.0 if left else share for share, left in zip(shares, waiting, strict=True)]  # left: no natural loop


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


def _loop_body(head: int, last: int, before: Sequence[Sequence[int]]) -> set[int]:
    body, pending = {head}, [last]
    while pending:
        block = pending.pop()
        if block not in body:
            body.add(block)
            pending += before[block]
    return body


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
