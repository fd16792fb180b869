"""Command `verify`: replay a certified run and compare its bits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import torch
import typer

from warpdrive_min import backends
from warpdrive_min.commands.environments import (
    Backend,
    environment_name,
    first_available,
    make_environment,
    report_errors,
    say,
)
from warpdrive_min.errors import BackendUnavailable, CertificateError, WarpDriveError, one_line
from warpdrive_min.terminal import echo
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.record.certificate import (
    Certificate,
    Origin,
    ReplayResult,
    replay,
    replay_config,
)
from warpdrive_min.training.scale.population import replay_trainer
from warpdrive_min.training.trainer import Trainer

VERIFIED: Final = "VERIFIED"
DIFFERS: Final = "DIFFERS"
OTHER_HARDWARE: Final = "OTHER HARDWARE"
EXIT: Final = {VERIFIED: 0, DIFFERS: 1, OTHER_HARDWARE: 2}
"""Exit codes by verdict."""
BROKEN: Final = 5
"""Exit code of a certificate that is damaged or from another release."""
MOST_DIFFERENCES: Final = 10
"""Differing sources and packages that are printed."""
SHOWN: Final = 12
"""Digits of a hash in the output."""

Pair = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict of a replay."""

    name: str
    """`VERIFIED`: bit-identical; `DIFFERS`; or `OTHER_HARDWARE`: may differ."""
    certificate: Certificate
    agreement: ReplayResult
    hardware: Mapping[str, Pair]
    """Hardware differences that affect the bits: recorded, and here."""
    differs: Mapping[str, Pair]
    """Other differences that affect the bits: recorded, and here."""

    def lines(self) -> list[str]:
        """Return the verdict as text."""
        run, agreement = self.certificate, self.agreement
        reached = (
            "no iteration, not even the start," if agreement.last is None else f"iterations 0 to {agreement.last:,}"
        )
        head = f"{self.name}: {reached} of {run.iterations:,} of {run.env}, seed {run.run_config['trainer']['seed']}"
        points = f"{agreement.n_points} points of {agreement.n_tensors} tensors are bit-identical"
        told = [f"{head}; {points}"]
        if agreement.difference is not None:
            told.append(f"  first difference: {agreement.difference}")
        told += [f"  other hardware: {_pair(name, both)}" for name, both in self.hardware.items()]
        told += [f"  not as recorded: {_pair(name, both)}" for name, both in [*self.differs.items()][:MOST_DIFFERENCES]]
        n_more = len(self.differs) - MOST_DIFFERENCES
        return told + ([f"  and {n_more} more, which --json lists"] if n_more > 0 else [])


def verify(
    path: Annotated[Path, typer.Argument(help="Certificate file, or folder of a run with a certificate.")],
    iterations: Annotated[int | None, typer.Option(min=0, help="Replay only the first iterations, this many.")] = None,
    backend: Backend = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a certified run and compare its bits; writes nothing.

    Exit codes: 0 verified, 1 differs, 2 differs on other hardware, 5 cannot be replayed. The default backend is the
    run's, or the first one available.
    """
    with report_errors(BROKEN):
        verdict = replayed(Certificate.read(path), iterations, backend)
    if as_json:
        fields = {"verdict": verdict.name, **asdict(verdict.agreement)}
        echo(json.dumps(fields | {"hardware": verdict.hardware, "differs": verdict.differs}, indent=1))
    else:
        for line in verdict.lines():
            say(one_line(line))
    raise typer.Exit(EXIT[verdict.name])


def replayed(certificate: Certificate, iterations: int | None = None, backend: str | None = None) -> Verdict:
    """Replay a certificate up to an iteration and return the verdict.

    Raises:
        CertificateError: The run uses policies or arrays made in Python, or fails in another way.
        ConfigError: The environment is unknown, or its run config breaks a rule of this release.
        BackendUnavailable: No backend on this machine can run it.
    """
    try:
        return _replayed(certificate, iterations, backend)
    except (WarpDriveError, OSError):
        raise
    except Exception as error:  # a failed run is not a differing run
        rule, do = "its run must end without an error", "look at its run config"
        raise CertificateError.of("certificate", rule, f"{type(error).__name__}: {error}", do) from error


def _replayed(certificate: Certificate, iterations: int | None, backend: str | None) -> Verdict:
    is_exact = certificate.config.trainer.exact
    threads = torch.get_num_threads() if is_exact else certificate.threads  # exact bits are independent of it
    with _threads(threads):
        trainer = _trainer(certificate, backend)
        try:
            agreement = replay(certificate, trainer, iterations)
            here = Origin.of(trainer)
        finally:
            trainer.graceful_close()
    hardware = certificate.origin.other_hardware(here)
    known = {f"machine {name}" for name in hardware}
    differs = certificate.origin.differences(here)
    may_differ = hardware and not is_exact  # exact bits do not depend on the machine
    name = VERIFIED if agreement.difference is None else OTHER_HARDWARE if may_differ else DIFFERS
    return Verdict(
        name=name,
        certificate=certificate,
        agreement=agreement,
        hardware=hardware,
        differs={name: both for name, both in differs.items() if name not in known},
    )


def _trainer(certificate: Certificate, backend: str | None) -> Trainer:
    """Return the run at its start, on the given, recorded or first available backend."""
    name = environment_name(certificate.env, "verify")
    config = certificate.config
    env = make_environment(name, config.env, "verify")
    chosen = backend or config.trainer.env_backend
    if backend is None:
        try:
            backends.get(chosen)
        except BackendUnavailable:  # the verdict names the replay's backend
            chosen = first_available(env, "verify")
    return replay_trainer(env, RunConfig.from_dict(replay_config(certificate, chosen)))


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """Set torch's number of threads, which determines how a CPU splits sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pair(name: str, both: Pair) -> str:
    is_hash = name.startswith(("source ", "machine code "))
    recorded, here = ((value or "none")[:SHOWN] if is_hash else value or "none" for value in both)
    return f"{name}, {recorded} recorded, {here} here"
