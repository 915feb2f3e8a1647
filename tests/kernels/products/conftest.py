"""A process in which Triton's kernels run on the CPU: the interpreter must be asked for before Triton is imported."""

import os
import pickle
import subprocess
import sys

import pytest

_SERVER = """
import importlib.util, os, pickle, sys, traceback
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
modules = {}
while True:
    try:
        path, name, arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        if path not in modules:
            spec = importlib.util.spec_from_file_location(f"interpreted_{len(modules)}", path)
            modules[path] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[path])
        answer = True, getattr(modules[path], name)(*arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    pickle.dump(answer, answers)
    answers.flush()
"""


@pytest.fixture(scope="session")
def interpreter():
    """Return a function that calls a function of a test's module, with arguments, in that process."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _SERVER]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(function, *arguments):
        pickle.dump((function.__code__.co_filename, function.__name__, arguments), process.stdin)
        process.stdin.flush()
        done, answer = pickle.load(process.stdout)
        if not done:
            pytest.fail(answer)
        return answer

    yield call
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()
