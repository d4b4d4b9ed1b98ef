"""Shared by all outputs: how far they are, where to continue, and when to write steps again.

An output stores the last step that it has in its own folder (MLflow: in tags of its run). A program
that is started again therefore continues where the last one stopped. After a resume from an earlier
checkpoint, the steps that are trained again are written again.
"""

import fcntl
import json
import os
from pathlib import Path

STATE = "sluice-log.json"
VERSION = 1


class Failure(Exception):
    """An output cannot be written. Its text gives the reason and the remedy."""


class Away(Failure):
    """A server does not answer, or refuses for now: a later open() of the output may succeed."""


class Output:
    """A destination for steps and events.

    Call open(), then fresh() and take() for steps and note() for events, and close() at the end.
    Subclasses define these methods:

      _begin(parameters)  starts a run that this output has nothing of, replacing an earlier one
      _resume()           continues from the state; anything after it was not acknowledged. False:
                          data is missing, and everything has to be written again
      _rewind(step)       this step and later ones are written again
      _write(records)     in ascending order of steps; durable on return, like the next ones
      _note(events)
      _end(how, reason)
      _close()
    """

    kind = "output"
    files = ()  # patterns of its files; a folder with such files but no state is not this program's

    def __init__(self, folder):
        self.folder = Path(folder) if folder is not None else None
        self.state = {}
        self._lock = None
        self._seeks = False
        self._threshold = None
        self._first_later = None  # the first step in the files after the last one written

    # ---- position

    @property
    def step(self):
        return self.state.get("step")

    @property
    def events_seen(self):
        return self.state.get("events", 0)

    def open(self, identity, parameters, has_all_before=True):
        """Continues if the output already has this run, otherwise begins. `has_all_before`: the
        run's first records come next, and those already written are skipped."""
        if not self.state:
            self._take_folder()
            self.state = self._load()
            if "life" in self.state:  # the name in earlier versions
                self.state["attempt"] = self.state.pop("life")
        is_same = (self.state.get("identity") == identity
                   and self.state.get("version") == VERSION)
        if not is_same or not self._resume():
            self.state = {"format": "sluice-log", "version": 0}
            if self.folder is not None:
                self._save()  # from now on the folder's contents are this program's
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
            raise Failure(f"{self.kind}: {self.folder} cannot be created:"
                          f" {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(f"{self.kind}: another sluice-log writes to {self.folder}: choose another"
                          " folder, or stop that process") from error
        except OSError:
            pass  # a file system without locks

    def _load(self):
        path = next((path for pattern in self.files for path in self.folder.glob(pattern)), None)
        if path is not None and not (self.folder / STATE).exists():
            raise Failure(f"{self.kind}: {path} was not written by sluice-log: choose a new folder,"
                          f" for example {self.folder / 'NAME'}")
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

    # ---- new records

    def begin_pass(self):
        """Called before the run's first records."""
        self._seeks = self.step is not None
        self._threshold = self._first_later = None

    def fresh(self, records):
        """The records that are not written yet."""
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
        """Called after the last available record. Returns True if the records have to be sent again
        from the first one, because the last one written is no longer among them."""
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
        else:  # truncated, and nothing new: what follows is
            self._seeks = False
            return False
        return True

    # ---- input

    def take(self, records):
        """Takes new records in any order. If two have the same step, the last one counts."""
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
        """Takes all of the run's events so far."""
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
    """Creates a file, replacing an existing one. A link is replaced, and its target is kept."""
    path.unlink(missing_ok=True)
    return open(path, "x", encoding="utf-8", **how)


def open_to_add(path, **how):
    """Opens a file to append to it, without following a link."""
    def itself(name, flags):
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)
    return open(path, "a", encoding="utf-8", opener=itself, **how)


def missing(what, package, error):
    """The Failure for a package that cannot be imported."""
    import sys

    return Failure(f"{what} needs the Python package {package}, which {sys.executable} cannot "
                   f"import ({error}). Run: {sys.executable} -m pip install {package}")
