"""`python -m tests.golden [PART ...]`: what this tree prints, writes and computes, against the tag before the redesign.

Both trees run `probe.py` over the tag's inputs: its records, documents and run configs. What the tag gives is kept in
$GOLDEN_CACHE (`.golden`). Differences on purpose stand in `docs/golden.md`; exits with 1 if there are others, or if one
that is listed is none. All parts take some five minutes of CPU time once the tag's outputs are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib import metadata
from io import BytesIO
from pathlib import Path

from tests.golden.compare import difference, differing, expected_in, unexplained

TREE = Path(__file__).resolve().parents[2]
PROBE = Path(__file__).with_name("probe.py")
EXPECTED = TREE / "docs" / "golden.md"
TAG = "before-redesign"
COMMIT = "f6ea487"
"""Of the tag, for clones without it."""
PARTS = (
    "tables",
    "plots",
    "report",
    "paper",
    "export",
    "claims",
    "records",
    "points",
    "help",
    "names",
    "draws",
    "trajectories",
    "weights",
    "checkpoints",
)
PACKAGES = ("numpy", "torch", "matplotlib", "rich", "typer", "numba-cuda", "pycuda", "triton")
"""Their versions may change what the tag gives."""


class GoldenError(Exception):
    """A tree cannot be run."""


def main() -> int:
    """Compare the parts that are asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without one")
    asked = parser.parse_args().parts
    if unknown := set(asked) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))} (parts are {', '.join(PARTS)})")
    expected = expected_in(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else []
    cache = Path(os.environ.get("GOLDEN_CACHE", TREE / ".golden")).resolve()
    is_as_expected = True
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        for part in asked or PARTS:
            started = time.monotonic()
            try:
                before, after = both(part, cache, Path(folder))
            except GoldenError as error:
                print(f"{part}: {error}")
                is_as_expected = False
                continue
            items = differing(before, after)
            new, idle = unexplained(part, items, expected)
            n_items = len(
                {str(f.relative_to(each)) for each in (before, after) for f in each.rglob("*") if f.is_file()}
            )
            says = f"{part}: {n_items} items, {len(items)} differ, {len(items) - len(new)} of them as expected"
            print(f"{says} ({time.monotonic() - started:.0f} s)", flush=True)
            for item in new:
                print("\n    ".join([f"  {item}", *difference(before / item, after / item)]))
            for row in idle:
                print(f"  {row.item}: does not differ; take it out of {EXPECTED.relative_to(TREE)} ({row.reason})")
            is_as_expected &= not new and not idle
    return 0 if is_as_expected else 1


def both(part: str, cache: Path, folder: Path) -> tuple[Path, Path]:
    """Return what the tag and this tree give; the tag runs only where its outputs are not kept."""
    tag = tag_tree(cache)
    more = [kept("write_checkpoints", tag, cache)] if part == "checkpoints" else []
    before = kept(part, tag, cache, *more)
    after = folder / part
    run(part, TREE, tag, after, *more)
    return before, after


def kept(part: str, tag: Path, cache: Path, *more: Path) -> Path:
    """Return the folder with what the tag gives, which another process may have made."""
    key = hashlib.sha256(PROBE.read_bytes())
    key.update(repr((sys.version, [version(name) for name in PACKAGES], has_gpu())).encode())
    folder = cache / "outputs" / key.hexdigest()[:12] / part
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{part}-", dir=folder.parent) as unfinished:
            run(part, tag, tag, Path(unfinished, "out"), *more)
            if not folder.is_dir():
                os.rename(Path(unfinished, "out"), folder)
    return folder


def tag_tree(cache: Path) -> Path:
    """Return the files of the tag."""
    folder = cache / "tree"
    if not folder.is_dir():
        git = ["git", "-C", str(TREE), "archive"]
        for name in (TAG, COMMIT):
            archive = subprocess.run([*git, name], capture_output=True, check=False)
            if archive.returncode == 0:
                break
        else:
            raise GoldenError(f"git knows neither {TAG} nor {COMMIT}; git fetch --tags --unshallow")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tree-", dir=cache) as unfinished:
            with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
                files.extractall(Path(unfinished, "tree"), filter="data")
            if not folder.is_dir():
                os.rename(Path(unfinished, "tree"), folder)
    return folder


def run(part: str, tree: Path, inputs: Path, out: Path, *more: Path) -> None:
    """Run a part of the probe on the modules of a tree, in an empty folder with the tag's results.

    Raises:
        GoldenError: It fails.
    """
    with tempfile.TemporaryDirectory(prefix="golden-run-") as place:
        Path(place, "results").symlink_to(inputs / "results")
        words = [sys.executable, "-P", str(PROBE), part, str(inputs), "out", *map(str, more)]
        done = subprocess.run(words, cwd=place, env=environment(tree), capture_output=True, text=True, check=False)
        if done.returncode:
            raise GoldenError(f"fails in {tree}:\n{done.stderr[-3000:]}")
        shutil.copytree(Path(place, "out"), out)


def environment(tree: Path) -> dict[str, str]:
    """Return the variables under which a tree gives the same again."""
    git_dir = subprocess.run(
        ["git", "-C", str(TREE), "rev-parse", "--absolute-git-dir"], capture_output=True, text=True, check=False
    )
    own = {
        "GIT_DIR": git_dir.stdout.strip(),  # the tag's tree has none, and `export` asks for the dates of commits
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "SOURCE_DATE_EPOCH": "0",
        "COLUMNS": "200",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    if not has_gpu():
        own["NUMBA_ENABLE_CUDASIM"] = "1"
    return {**os.environ, **own}


def has_gpu() -> bool:
    """Tell whether kernels run on a GPU here."""
    return shutil.which("nvidia-smi") is not None


def version(package: str) -> str:
    """Return the version of a package, "" where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
