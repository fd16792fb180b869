"""Which sources a process has: one hash that needs neither git nor anything installed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("warpdrive_min", "envs", "bench")


@cache
def sources_hash(root: Path = ROOT) -> str:
    """Return a hash over name and content of every file of the packages, as they were at the first call."""
    digest = hashlib.sha256()
    for folder in (root / name for name in PACKAGES):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
