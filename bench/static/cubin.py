"""Kernels of a compiled file: machine code, registers, shared and local memory.

A cubin is an ELF file. Each function's code is in a section ``.text.<function>``. The compiler's data for the driver is
a list of attributes in ``.nv.info``.

Source: the ELF-64 object format; attribute numbers as `cuobjdump -elf` of CUDA 13 prints them (EIATTR_REGCOUNT,
EIATTR_FRAME_SIZE).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REGCOUNT: Final = 0x2F
FRAME_SIZE: Final = 0x11
SIZED: Final = 4
"""Form of an attribute that starts with its size in bytes."""
IS_ENTRY: Final = 0x10
"""Bit that marks a symbol as a kernel."""
IS_FUNCTION: Final = 2


class CubinError(ValueError):
    """A file is no cubin, or cannot be read here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCode:
    """Kernel of a compiled file."""

    name: str
    """Name in the file; Numba mangles names."""
    functions: tuple[str, ...]
    """Kernel and all non-kernel functions of the file, its possible callees."""
    n_bytes: int
    """Machine code of all these functions, bytes."""
    hash: str
    """Hash of that code.

    The bytes are unchanged; they contain no address, no name and no debug data."""
    registers: int
    """Registers per thread."""
    shared_bytes: int
    """Static shared memory per block, bytes."""
    local_bytes: int
    """Local memory per thread, bytes.

    It holds spills, and arrays with an index known only at run time."""


def kernels(path: Path) -> dict[str, KernelCode]:
    """Return the kernels of a compiled file by name.

    Raises:
        CubinError: The file is no cubin.
    """
    content = path.read_bytes()
    if content[:5] != b"\x7fELF\x02":
        raise CubinError(f"{path}: must be an ELF-64 file (got {content[:5]!r}); compile it again")
    sections = _sections(content)
    symbols = _symbols(sections)
    attributes = _attributes(sections.get(".nv.info", (0, b""))[1])
    texts = {name.removeprefix(".text."): data for name, (_, data) in sections.items() if name.startswith(".text.")}
    entries = {name for name, kind, other in symbols if kind == IS_FUNCTION and other & IS_ENTRY and name in texts}
    others = tuple(sorted(texts.keys() - entries))
    number_of = {name: index for index, (name, _, _) in enumerate(symbols)}
    found = {}
    for name in sorted(entries):
        functions = (name, *others)
        digest = hashlib.sha256()
        for function in functions:
            digest.update(texts[function])
        found[name] = KernelCode(
            name=name,
            functions=functions,
            n_bytes=sum(len(texts[function]) for function in functions),
            hash=digest.hexdigest()[:16],
            registers=attributes.get((REGCOUNT, number_of[name]), 0),
            shared_bytes=sections.get(f".nv.shared.{name}", (0, b""))[0],
            local_bytes=max(attributes.get((FRAME_SIZE, number_of[function]), 0) for function in functions),
        )
    return found


def _sections(content: bytes) -> dict[str, tuple[int, bytes]]:
    """Return size and content of each section by name.

    A section without space in the file has no content.
    """
    (start,) = struct.unpack_from("<Q", content, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", content, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", content, start + index * size) for index in range(count)]
    names = heads[of_names][4]
    return {_name(content, names + head[0]): (head[5], _body(content, head)) for head in heads}


def _body(content: bytes, head: tuple[int, ...]) -> bytes:
    no_bits = 8
    return b"" if head[1] == no_bits else content[head[4] : head[4] + head[5]]


def _symbols(sections: dict[str, tuple[int, bytes]]) -> list[tuple[str, int, int]]:
    """Return name, type and vendor bits of each symbol, by its number."""
    table, names = sections[".symtab"][1], sections[".strtab"][1]
    found = [struct.unpack_from("<IBB", table, at) for at in range(0, len(table), 24)]
    return [(_name(names, name), info & 0xF, other) for name, info, other in found]


def _name(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def _attributes(info: bytes) -> dict[tuple[int, int], int]:
    """Return numeric attributes by attribute and symbol."""
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == SIZED:
            if size == 8:
                symbol, value = struct.unpack_from("<II", info, at)
                found[attribute, symbol] = value
            at += size
    return found
