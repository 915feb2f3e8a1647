from __future__ import annotations

import subprocess
import sys
import time

import pytest

from wavetank.machine.clocks import CpuClock


def test_processor_time_counts_this_process_and_children_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CpuClock.of(None)
    monkeypatch.setattr(time, "process_time", lambda: 10.0)
    # What a child has burnt is seen when it has ended, however busy the machine.
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    assert clock.seconds(lambda: subprocess.run([sys.executable, "-c", burn], check=True)) >= 0.2
    assert clock.seconds(lambda: None) == 0.0
    ticks = iter([10.0, 10.5])
    monkeypatch.setattr(time, "process_time", lambda: next(ticks))
    assert clock.seconds(lambda: None) == pytest.approx(0.5)
