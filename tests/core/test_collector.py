"""Pauses of the garbage collector."""

from __future__ import annotations

import gc

import torch

from warpdrive_min.collector import collection_paused
from warpdrive_min.training.loop import checkpoint


def test_overlapping_pauses_end_with_the_last():
    """The first of two pauses may end first, as in threads."""
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_pause_keeps_the_collector_off():
    """A collector that was off before a pause is off after it."""
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_checkpoints_are_written_without_collection(tmp_path, monkeypatch):
    """No garbage is collected in the thread that writes."""
    seen = []
    monkeypatch.setattr(checkpoint, "_save", lambda *_: seen.append(gc.isenabled()))
    monkeypatch.setattr(checkpoint, "_target", lambda *_: tmp_path)
    writer = checkpoint.Writer()
    writer.save(tmp_path, {"weights": torch.zeros(1)}, None, 1, False)
    writer.wait()
    assert seen == [False]
