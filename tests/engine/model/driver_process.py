"""model_driver in one process for all passes of a test: it takes longer to start than to compute one."""

import atexit
import os
import subprocess

PROGRAM = os.path.abspath(os.environ.get("MODEL_DRIVER", "build/bin/model_driver"))
_running = []


def _stop(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def driver(command, **options):
    """What it prints for the command. What it says of a failure goes to standard error."""
    if not _running:
        _running.append(subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True))
        atexit.register(_stop, _running[0])
    process = _running[0]
    words = [f"{key}={value}" for key, value in options.items()]
    print(command, *words, sep="\t", file=process.stdin, flush=True)
    printed = ""
    for line in process.stdout:
        if line == "done\n":
            return printed
        printed += line
    _running.clear()
    raise AssertionError(f"model_driver ended with code {process.wait()} at: {command} {words}")
