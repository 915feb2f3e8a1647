"""``python -m wavetank``."""

import subprocess
import sys

import wavetank


def test_it_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "wavetank", "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert wavetank.__version__ in done.stdout
