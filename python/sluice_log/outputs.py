"""What all outputs share: how far they are, where to go on, and when to write steps again.

An output remembers the last step that it has, in its own folder (MLflow: in tags of its run). So a
program that is started again goes on where the last one was, and steps that were trained again,
after a resume from an earlier checkpoint, are written again from there on.
"""

import fcntl
import json
import os
from pathlib import Path

STATE = "sluice-log.json"
VERSION = 1


class Failure(Exception):
    """An output cannot be written. Its text says why, and what to do about it."""


class Away(Failure):
    """A server does not answer, or refuses for now: open() of the same output may go on later."""


class Output:
    """One place where steps and events go.

    open(), then fresh() and take() of steps, and note() of events; last close(). Subclasses have
    the parts that begin with an underscore:

      _begin(parameters)  of a run that this output has nothing of: what was there is replaced
      _resume()           after what the state says; what is behind that was not acknowledged.
                      False: what should be there is not, and all of it has to come again
      _rewind(step)       this step and later ones come again
      _write(records)     in ascending order of steps; durable when it returns, like the next ones
      _note(events)
      _end(how, reason)
      _close()
    """

    kind = "output"
    files = ()  # patterns of what it writes; a folder that has some and no state is somebody else's

    def __init__(self, folder):
        self.folder = Path(folder) if folder is not None else None
        self.state = {}
        self._lock = None
        self._seeks = False
        self._threshold = None
        self._first_later = None  # the first step in the files that is newer than the last written

    # ---- where it is

    @property
    def step(self):
        return self.state.get("step")

    @property
    def events_seen(self):
        return self.state.get("events", 0)

    def open(self, identity, parameters, has_all_before=True):
        """Goes on with the run if it is the one that is there, else begins. `has_all_before`: the
        run's first records come next, and those that are written already are to be passed over."""
        if not self.state:
            self._take_folder()
            self.state = self._load()
        is_same = (self.state.get("identity") == identity
                   and self.state.get("version") == VERSION)
        if not is_same or not self._resume():
            self.state = {"format": "sluice-log", "version": 0}
            if self.folder is not None:
                self._save()  # from here on what is in the folder is ours
            self.state.update(version=VERSION, identity=identity)
            self._begin(parameters)
            self._save()
        self.begin_pass()
        self._seeks = self._seeks and has_all_before

    def _take_folder(self):
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Failure(f"{self.kind}: {self.folder} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(f"{self.kind}: another sluice-log writes to {self.folder}: choose another "
                          "folder, or end that one") from error
        except OSError:
            pass  # a file system without locks

    def _load(self):
        path = next((path for pattern in self.files for path in self.folder.glob(pattern)), None)
        if path is not None and not (self.folder / STATE).exists():
            raise Failure(f"{self.kind}: {path} was not written by sluice-log: name a folder of its "
                          f"own, {self.folder / 'NAME'} say")
        try:
            found = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _save(self):
        path = self.folder / STATE
        staged = path.with_name(STATE + ".new")
        with open_new(staged) as file:
            json.dump(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)

    # ---- which records are new

    def begin_pass(self):
        """The run's first records come next."""
        self._seeks = self.step is not None
        self._threshold = self._first_later = None

    def fresh(self, records):
        """Those that are not written yet."""
        if not self._seeks:
            return records
        if self._threshold is not None:
            return [record for record in records if record.step > self._threshold]
        last_s = self.state.get("unix_s")
        for i, record in enumerate(records):
            if record.step == self.step and record.unix_s == last_s:
                self._seeks = False
                return records[i + 1:]
            if (self._first_later is None and record.unix_s is not None and last_s is not None
                    and record.unix_s > last_s):
                self._first_later = record.step
        return []

    def end_pass(self, events, any_records):
        """All that there are have come. True: they have to come once more, from the first one on,
        because the last one written is not among them any more."""
        if not self._seeks:
            return False
        if self._threshold is not None or not any_records:
            self._seeks = self._threshold is None
            return False
        begins = [event["step"] for event in events[self.events_seen:] if event["event"] == "begin"]
        if begins and min(begins) < self.step:
            self._threshold = min(begins)
        elif self._first_later is not None:
            self._threshold = self._first_later - 1
        elif self.state.get("unix_s") is None:
            self._threshold = -1
        else:  # cut, and nothing new: what comes next is
            self._seeks = False
            return False
        return True

    # ---- what it is given

    def take(self, records):
        """New ones, in any order; of two of one step the last counts."""
        if not records:
            return
        by_step = {record.step: record for record in records}
        ordered = [by_step[step] for step in sorted(by_step)]
        if self.step is not None and ordered[0].step <= self.step:
            self._rewind(ordered[0].step)
        self._write(ordered)
        self.state["step"] = ordered[-1].step
        self.state["unix_s"] = ordered[-1].unix_s
        self._save()

    def note(self, events):
        """All of the run so far."""
        new = events[self.events_seen:]
        if not new:
            return
        self._note(new)
        self.state["events"] = len(events)
        self._save()

    def end(self, how, reason):
        self._end(how, reason)
        self._save()

    def close(self):
        try:
            self._close()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _end(self, how, reason):
        pass

    def _close(self):
        pass


def open_new(path, **how):
    """A file in place of whatever has the name: what a link leads to stays as it is."""
    path.unlink(missing_ok=True)
    return open(path, "x", encoding="utf-8", **how)


def open_to_add(path, **how):
    """Never what a link leads to."""
    def itself(name, flags):
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)
    return open(path, "a", encoding="utf-8", opener=itself, **how)


def missing(what, package, error):
    """For a package that cannot be imported."""
    import sys

    return Failure(f"{what} needs the Python package {package}, which {sys.executable} cannot "
                   f"import ({error}). Run: {sys.executable} -m pip install {package}")
