"""WarpDrive's processes."""

from __future__ import annotations

import operator

from warp_drive.training.utils.device_child_process.child_process_base import ProcessWrapper


def test_process_hands_its_error_to_its_parent():
    """A spawned process sends its exception."""
    process = ProcessWrapper(target=operator.truediv, args=(1, 0))
    process.start()
    process.join()
    assert isinstance(process.exception, ZeroDivisionError)


def test_error_that_cannot_be_sent_is_told():
    """A text replaces an exception that cannot be pickled."""

    def fail():
        raise ValueError(lambda: 1)

    process = ProcessWrapper(target=fail)
    process.run()
    assert isinstance(process.exception, RuntimeError)
    assert "ValueError" in str(process.exception)
    assert "function" in str(process.exception)
