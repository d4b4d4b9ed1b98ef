"""Starts the programs of tools/demo, and passes Ctrl-C on to them.

Each runs in a session of its own, so a Ctrl-C of the terminal reaches the demo alone. The demo
passes it on once, waits until the program has ended in an orderly way, and then stops. (If both
received it, a Ctrl-C just after the demo's own interrupt would be the program's second, which stops
it at once, without saving.)
"""

import os
import signal
import subprocess

EXIT_SAVED = 75  # sluice train was interrupted, and has saved


class Stopped(Exception):
    """The user stopped the demo by Ctrl-C, SIGTERM or SIGHUP."""


class Children:
    """A context that handles the signals of one child at a time."""

    def __init__(self):
        self._child = None
        self._stops = 0  # signals so far
        self._former = {}

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                self._former[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *unused):
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _stop(self, *unused):
        self._stops += 1
        if self._child is not None:
            self._child.pass_on(self._stops)

    def check(self):
        if self._stops:
            raise Stopped

    def start(self, command, **keywords):
        self.check()
        self._child = Child(command, self, **keywords)
        if self._stops:  # a signal came while the child was being started
            self._child.pass_on(self._stops)
        return self._child

    def run(self, command, **keywords):
        """Runs the command; returns its exit code."""
        return self.start(command, **keywords).wait()


class Child:
    def __init__(self, command, children, whole_group=False, **keywords):
        """whole_group: its own children get the signal too, as SIGINT, as a terminal sends it."""
        self._children = children
        self._whole_group = whole_group
        self._interrupted = False
        self._process = subprocess.Popen([str(word) for word in command],
                                         stdin=subprocess.DEVNULL, start_new_session=True,
                                         **keywords)

    def runs(self):
        return self._process.poll() is None

    def interrupt(self):
        """Acts like the user's Ctrl-C; a real one after it is not passed on a second time."""
        self._interrupted = True
        self._process.terminate()

    def pass_on(self, stops):
        if self._interrupted and stops == 1 or not self.runs():
            return
        if self._whole_group:
            os.killpg(self._process.pid, signal.SIGINT)
        else:
            self._process.terminate()

    def wait(self):
        """The exit code, or 0 if interrupt() ended the child and it saved. Raises Stopped if the
        user asked for that meanwhile."""
        code = self._process.wait()
        self._children.check()
        return 0 if self._interrupted and code == EXIT_SAVED else code
