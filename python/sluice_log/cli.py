"""The program sluice-log. See --help."""

import argparse
import os
import select
import signal
import sys
import time

from .chosen_outputs import make_outputs
from .outputs import Away, Failure
from .records import plain_text
from .run import Run

HELP = """\
Writes the metrics, events and configuration of a run of Sluice to TensorBoard, Weights & Biases,
MLflow or CSV files, with their own Python packages. The same command again adds what is new. Steps
that were trained again after a resume replace the earlier ones in TensorBoard and CSV files. In
Weights & Biases and MLflow, whose histories only grow, they appear again with a larger
progress/attempt.
"""

EXAMPLES = """\
examples:
  sluice-log runs/a --tensorboard out/tb
  sluice-log runs/a --csv out/a --follow                  # until the run ends
  sluice-log runs/a --wandb my-project --wandb-offline    # wandb sync sends it later
  sluice-log runs/a --mlflow http://localhost:5000
"""

POLL_S = 0.5
FIRST_RETRY_S = 2  # for a server that is unreachable; doubled after each attempt
MOST_RETRY_S = 300
EXIT_FAILURE = 1
EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"sluice-log: {message}; sluice-log --help explains every option", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parse_options(words):
    parser = Parser(prog="sluice-log", description=HELP, epilog=EXAMPLES, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN",
                        help="a run's folder (sluice train --out), or a metrics.jsonl")
    parser.add_argument("--follow", action="store_true",
                        help="continue while the run does, and end with it")
    parser.add_argument("--tensorboard", metavar="DIR",
                        help="event files against steps, and in DIR/by_tokens against tokens")
    parser.add_argument("--csv", metavar="DIR", help="metrics.csv, events.csv and config.csv")
    parser.add_argument("--wandb", metavar="PROJECT", help="a run of Weights & Biases")
    parser.add_argument("--wandb-offline", action="store_true",
                        help="without its server: into a folder")
    parser.add_argument("--wandb-dir", metavar="DIR",
                        help="write its files to DIR/wandb (default: RUN)")
    parser.add_argument("--wandb-team", metavar="TEAM", help="whose project it is")
    parser.add_argument("--wandb-group", metavar="GROUP", help="a group of runs")
    parser.add_argument("--mlflow", metavar="URI", help="a run of MLflow: a tracking URI")
    parser.add_argument("--mlflow-experiment", metavar="NAME", default="sluice",
                        help="its experiment (default: sluice)")
    parser.add_argument("--name", help="the run's name in Weights & Biases and MLflow")
    # Set by `sluice train`: sluice-log ends soon after its standard input closes.
    parser.add_argument("--companion", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if not (options.tensorboard or options.csv or options.wandb or options.mlflow):
        parser.error("no output was chosen: pass --tensorboard, --csv, --wandb or --mlflow")
    for name in ("wandb_offline", "wandb_dir", "wandb_team", "wandb_group"):
        if getattr(options, name) and not options.wandb:
            parser.error(f"--{name.replace('_', '-')} has no effect without --wandb")
    if options.wandb and not options.wandb_dir:
        is_file = os.path.isfile(options.run)
        options.wandb_dir = os.path.dirname(options.run) if is_file else options.run
    return options


def say(sentence):
    print(f"sluice-log: {sentence}", file=sys.stderr, flush=True)


class Logger:
    """Sends what a run writes to its outputs. An output that fails is dropped. While the run is
    followed, an output whose server is unreachable is retried, and then gets what it missed."""

    def __init__(self, run, outputs, retries=False):
        self.run = run
        self.outputs = outputs
        self.away = {}  # output -> time of the next attempt
        self._pauses = {}  # the last pause of outputs that have not caught up yet
        self.failed = False
        self._retries = retries
        self._count = 0  # records of this pass over the run's files
        self._identity = None
        self._is_open = False
        self._any_records = False

    def each(self, work):
        for output in list(self.outputs):
            try:
                work(output)
            except Away as away:
                self._leave(output, str(away))
            except Failure as failure:
                self._drop(output, str(failure))
            except OSError as error:
                where = f" {error.filename}" if error.filename else ""
                self._drop(output, f"{output.kind} cannot be written:{where} {error.strerror or error}")
            except Exception as error:  # from third-party packages: it affects one output only
                self._drop(output, f"{output.kind} failed: {type(error).__name__}: {error}")

    def _drop(self, output, sentence):
        say(plain_text(sentence))
        self.failed = True
        self.outputs.remove(output)
        try:
            output.close()
        except Exception:  # the failure itself has been reported
            pass

    def _leave(self, output, sentence):
        if not self._retries:
            self._drop(output, f"{sentence}; run the same command again once it answers, to add"
                               " what is missing")
            return
        pause_s = self._pauses.get(output)
        if pause_s is None:
            say(plain_text(f"{sentence}; it will be tried again, and the run is not delayed"))
        self._pauses[output] = FIRST_RETRY_S if pause_s is None else min(2 * pause_s, MOST_RETRY_S)
        self.away[output] = time.monotonic() + self._pauses[output]
        self.outputs.remove(output)

    def _call_back(self, at_once=False):
        """Retries unreachable outputs that are due."""
        for output, due_s in list(self.away.items()):
            if time.monotonic() < due_s and not at_once:
                continue
            del self.away[output]
            self.outputs.append(output)
            self._catch_up(output)
            if output in self.outputs:
                del self._pauses[output]
                say(f"{output.kind} answers again, and has received what it missed")

    def _catch_up(self, output):
        def only(work):
            self.each(lambda each: each is output and work())

        parameters = self.run.parameters()
        again = []
        only(lambda: output.open(self._identity, parameters))
        self._replay([output])
        only(lambda: output.end_pass(self.run.events, self._any_records) and again.append(output))
        if again:
            self._replay(again)
            only(lambda: output.end_pass(self.run.events, self._any_records))
        only(lambda: output.note(self.run.events))

    def _open(self):
        identity = self.run.identity()
        if self._is_open and self._identity in (None, identity):
            return
        self._identity, self._is_open = identity, True
        parameters = self.run.parameters()
        self.each(lambda output: output.open(identity, parameters))

    def round(self):
        """Processes what is available now. Returns whether anything was new."""
        self._call_back()
        news = self.run.read_events()
        any_records = False
        while True:
            records, restarted = self.run.read_steps()
            if restarted:
                self._count = 0
                self.each(lambda output: output.begin_pass())
            if records or self.run.events:
                self._open()
            any_records = any_records or bool(records)
            self._any_records = self._any_records and not restarted or bool(records)
            self._take(records)
            self._count += len(records)
            if self.run.metrics.at_end:
                break
        again = []
        self.each(lambda output: output.end_pass(
            self.run.events, self._any_records) and again.append(output))
        if again:
            self._replay(again)
            self.each(lambda output: output.end_pass(self.run.events, self._any_records))
        if self._is_open:
            self.each(lambda output: output.note(self.run.events))
        return news or any_records

    def _take(self, records, only=None):
        if records:
            self.each(lambda output: only is not None and output not in only or output.take(
                output.fresh(records)))

    def _replay(self, outputs):
        """Sends all records so far again. Later ones follow by themselves."""
        reader = Run(self.run.path)
        left = self._count
        while left > 0:
            records, _ = reader.read_steps()
            self._take(records[:left], only=outputs)
            left -= len(records)
            if reader.metrics.at_end:
                break
        reader.metrics.close()

    def finish(self):
        self._call_back(at_once=True)
        rest = self.run.rest()
        if rest:
            self._open()
            self._take(rest)
        ending = self.run.ending()
        if ending and self._is_open:
            self.each(lambda output: output.end(*ending))
        self.each(lambda output: output.close())
        for output in self.away:
            say(f"{output.kind} did not answer until the end and lacks steps: run the same command"
                " again to add them")
            self.failed = True
        left_out = self.run.bad_lines + self.run.metrics.too_long
        if left_out:
            say(f"{left_out} line{'s' if left_out > 1 else ''} of {self.run.path} cannot be read, "
                "and are left out")


def is_input_closed():
    """With `--companion`: whether the run's program has ended, or asks this one to end."""
    ready, _, _ = select.select([0], [], [], 0)
    return bool(ready) and not os.read(0, 4096)


def follow(logger, run, options):
    while logger.outputs or logger.away:
        is_last = options.companion and is_input_closed()
        ended_before = run.ending() is not None
        news = logger.round()
        # Steps come before the run's end, so read once more after the end was seen.
        if is_last or (not news and (ended_before or run.ending() is not None)):
            return
        if not news and run.is_left(say):
            say(f"{run.path}: the run crashed: it recorded no end, and no process trains in the"
                " folder")
            return
        time.sleep(POLL_S)


def main(words=None):
    try:
        options = parse_options(words)
        if options.companion:
            os.nice(10)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # closes outputs as well
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # for the run; Slurm sends them to all
            signal.signal(number, signal.SIG_IGN)
        run = Run(options.run)
        if not options.follow:
            run.check_there()
        logger = Logger(run, make_outputs(options), retries=options.follow)
        try:
            if options.follow:
                follow(logger, run, options)
            else:
                logger.round()
        finally:
            logger.finish()
        return EXIT_FAILURE if logger.failed else 0
    except Failure as failure:
        say(str(failure))
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return 130


def script():
    """The entry point of an installed package."""
    sys.exit(main())
