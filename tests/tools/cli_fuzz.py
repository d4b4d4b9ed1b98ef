"""Random command lines for sluice: combinations of commands, flags and damaged inputs.

  cli_fuzz.py [--cases N] [--seed S] [--jobs J] [--only NUMBER] [--engine]

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch. Every command line has
to end within a minute, by itself, with 0, 1 or 2. A refusal is one sentence at the end of standard
error and leaves every file unchanged. No argument is ignored: exit code 0 means that every value
was valid and that every flag had an effect. Prints the seed and the number of cases by outcome.
--only repeats one case and shows its output; --engine leaves out the commands that a program
without LibTorch also has.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz_commands import COMMANDS, HAS_ENGINE, NAME, STEP, WITHOUT_ENGINE, draw_case, resumes
from fuzz_inputs import copy_template, make_template

SLUICE = os.path.abspath(os.environ["SLUICE"])
TIMEOUT_S = 60
CRASH = re.compile(r"terminate called|CHECK failed|runtime error:|Traceback|Segmentation|Sanitizer|"
                   r"core dumped|what\(\)|Exception raised from|frame #\d|std::|c10::|bad_alloc|"
                   r"nlohmann|CLI11")


# --- effects of flags ---------------------------------------------------------------------------

def is_json(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def header_of(path):
    raw = path.read_bytes()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])


def unmarked_data(given, said):
    """The same for `sluice data`."""
    in_json = "--json" in given
    shown = json.loads(said) if in_json else {}
    missing = []
    count = len(shown["samples"]) if in_json else said.count("\n--- sample ")
    if "--samples" in given and (count > int(given["--samples"][-1]) or
                                 (count == 0) != (int(given["--samples"][-1]) == 0)):
        missing.append("--samples")
    if "--sequence-length" in given or "--config" in given:
        length = given.get("--sequence-length", ["8"])[-1]
        if (shown["rows"]["sequence_length"] != int(length) if in_json else
                f"\nrows of {length} tokens: " not in said):
            missing.append("--sequence-length or --config")
    if "--tokenizer" in given and (shown["files"][0]["tokenizer"]["kind"] != "bytes" if in_json
                                   else "\n  tokenizer: bytes" not in said):
        missing.append("--tokenizer")
    if "--tokens" in given and in_json and given["--tokens"][-1] != "0":
        missing += ["--tokens"] * any(
            sum(part["shown"] for part in sample["parts"]) > int(given["--tokens"][-1])
            for sample in shown["samples"])
    return missing


def unmarked(case, folder, result):
    """Flags without an effect, of a command that ended with 0; its files are in `folder`."""
    given, missing = case.flags, []

    def expect(name, holds):
        if name in given and not holds():
            missing.append(name)
    out = folder / given.get("--out", ["run0"])[-1]
    if case.command == "train":
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        done = STEP if out.name == "run0" and resumes(given) else 0
        expect("--steps", lambda: json.loads(lines[-1])["step"] == max(
            int(given["--steps"][-1]), done))
        if "--quiet" in given:
            return missing + ["--quiet"] * bool(result.stderr) + ["the end's table"] * (
                "tokens/s" not in result.stdout and done < int(json.loads(lines[-1])["step"]))
        expect("--log-every", lambda: json.loads((out / "config.json").read_text())["run"][
            "log_every"] == int(given["--log-every"][-1]))
        expect("--epochs", lambda: " steps: run.epochs " in result.stderr)
        expect("--out", lambda: (out / "config.json").exists())
        expect("--io-watchdog", lambda: json.loads((out / "config.json").read_text())["run"][
            "io_watchdog"] == float(given["--io-watchdog"][-1]))
        expect("--overwrite", lambda: "--overwrite: removing the run in" in result.stderr)
        expect("--trace", lambda: (out / "trace.json").exists())
        expect("--init-from", lambda: f"weights: from {given['--init-from'][-1]}" in result.stderr)
        if resumes(given) and "continuing from" not in result.stderr and (
                done > 0 or "there is no checkpoint" not in result.stderr):
            missing.append("--resume")
        if "--save-weights" in given:
            kinds = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
            header = header_of(folder / given["--save-weights"][-1])
            wanted = kinds[given.get("--dtype", ["fp32"])[-1]]
            if {one["dtype"] for name, one in header.items() if name != "__metadata__"} != {wanted}:
                missing.append("--dtype")
    if case.command == "export":
        said = result.stdout
        expect("--checkpoint", lambda: NAME in said)
        expect("--dtype", lambda: f"as {given['--dtype'][-1]}" in said)
        expect("--max-shard-size", lambda: ("in 1 file\n" in said) ==
               (given["--max-shard-size"][-1] != "4K"))
    if case.command == "copy":
        expect("--checkpoint", lambda: NAME in result.stdout)
    if case.command == "report":
        page = (folder / given["--out"][-1]).read_text(encoding="utf-8")
        shown = json.loads(re.search(r'id="sluice-data">(.*?)</script>', page)[1])
        expect("--drive-tbw", lambda: shown["drive_tbw"] == float(given["--drive-tbw"][-1]))
        expect("--out", lambda: len(shown["runs"]) == 1)
    if case.command == "completion":
        missing += ["SHELL"] * (f"sluice completion {case.words[-1]}\n" not in result.stdout)
    if case.command == "man":
        expect("--names", lambda: "\nsluice-config\n" in result.stdout)
        missing += ["a page"] * ("--names" not in given and ".SH OPTIONS" not in result.stdout)
    if case.command == "metrics":
        expect("--markdown", lambda: result.stdout.startswith("# "))
        expect("--keys", lambda: len(result.stdout) > 3000)
    if case.command in ("config", "data", "doctor", "ls", "eval", "metrics", "plan"):
        expect("--json", lambda: is_json(result.stdout))
    if case.command == "data":
        missing += unmarked_data(given, result.stdout)
    if case.command == "config":
        expect("--verbose", lambda: "\ndefaults\n" in result.stdout)
        expect("--keys", lambda: len(result.stdout) > 10_000)
    if case.command == "config" and "--json" in given:
        resolved = json.loads(result.stdout)
        expect("--io-watchdog", lambda: resolved["run"]["io_watchdog"] == float(
            given["--io-watchdog"][-1]))
        for setting in given.get("--set", []):
            if "--deepspeed" in given or sum(
                    other.split("=")[0] == setting.split("=")[0] for other in given["--set"]) > 1:
                continue
            if setting == "model.activation=gelu_new":  # the default, which is not stored
                continue
            path, wanted = setting.split("=")
            found = resolved
            for name in path.split("."):
                found = found.get(name, {}) if isinstance(found, dict) else {}
            if found != (json.loads(wanted) if is_json(wanted) else wanted):
                missing.append(f"--set {setting}")
    if case.command == "ls":
        expect("--verify", lambda: "complete" not in result.stdout)
    if case.command == "eval":
        expect("--by-document", lambda: any(mark in result.stdout for mark in (
            "\nmean over documents: ", '"documents": [', "file,document,targets,")))
        expect("--csv", lambda: result.stdout.startswith("file,document,targets,loss,perplexity\n"))
        expect("--batches", lambda: int(given["--batches"][-1]) * 2 * 8 >= int(
            re.search(r"over (\d+) tokens|\"tokens\": (\d+)", result.stdout).group(
                2 if "--json" in given else 1)))
    if case.command == "generate":
        expect("--tokens", lambda: len(result.stdout) <= 4 * int(given["--tokens"][-1]) + 1)
        # Both are greedy with any other flags. --top-k keeps all equal scores, which are
        # common with 16 bits, as transformers does; so the comparison uses fp32.
        greedy = {"--temperature": "0", "--top-k": "1"}
        if any(given.get(name, [""])[-1] == value for name, value in greedy.items()):
            words = [word for name in ("--tokens", "--tokenizer", "--prompt", "--checkpoint")
                     for value in given.get(name, []) for word in (name, value)]
            start = ["generate", case.words[case.words.index("generate") + 1], *words]
            fp32 = ["--set", "bf16.enabled=false"]
            said = {name: run_program([*start, name, value, *fp32], folder).stdout
                    for name, value in greedy.items()}
            for name in greedy:
                expect(name, lambda: said["--top-k"] == said["--temperature"])
    if case.command == "profile":
        to_file = "--out" in given
        text = (folder / given["--out"][-1]).read_text() if to_file else result.stdout
        expect("--json", lambda: is_json(text))
        expect("--trace", lambda: is_json((folder / given["--trace"][-1]).read_text()))
        expect("--steps", lambda: f'"steps": {given["--steps"][-1]}' in text or
               text.startswith(f'{given["--steps"][-1]} steps of '))
    if case.command == "plan":
        expect("--simulate", lambda: "simulated" in result.stdout)
        expect("--trace", lambda: is_json((folder / given["--trace"][-1]).read_text()))
        expect("--gpus", lambda: "2 GPUs" in result.stdout or
               '"ranks_per_host": 2' in result.stdout)
        expect("--link-gb-per-s", lambda: "link" in result.stdout)
    return missing


# --- one case -----------------------------------------------------------------------------------

def run_program(words, folder):
    return subprocess.run([SLUICE, *words], cwd=folder, check=False, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
                          env=dict(os.environ, XDG_CACHE_HOME=str(folder.parent / "cache")))


def state_of(folder):
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


SILENT = {("diff", 1), ("doctor", 1), ("ls", 1), ("scrub", 1), ("tune", 1), ("train", 1)}


def judge(case, folder, before, result):
    """What is wrong with the outcome, or None."""
    said = result.stdout + result.stderr
    if result.returncode not in (0, 1, 2):
        return f"ended with {result.returncode}"
    found = CRASH.search(said)
    if found:
        return f"shows {found[0]!r}"
    if result.returncode == 0 and case.mistakes:
        return f"ended with 0 in spite of {', '.join(case.mistakes)}"
    if result.returncode == 0:
        missing = unmarked(case, folder, result)
        return f"left no mark of {', '.join(missing)}" if missing else None
    does_not_fit = case.command == "plan" and "fit" in result.stdout
    if (case.command, result.returncode) not in SILENT and not does_not_fit:
        last = (result.stderr.splitlines() or [""])[-1]
        if not re.match(r"sluice: \S", last) and not re.search(r"^sluice: \d+ settings cannot",
                                                               result.stderr, re.MULTILINE):
            return f"the last line is no sentence of sluice's: {last!r}"
    if result.returncode == 2:
        after = state_of(folder)
        lost = [name for name, state in before.items() if after.get(name) != state]
        if lost:
            return f"was refused and changed {', '.join(lost[:3])}"
    return None


def in_text(case, result):
    """Adds the messages of --json-lines to standard error, where other forms print them."""
    if "--json-lines" not in case.flags or not result.stdout.startswith("{"):
        return
    for line in result.stdout.splitlines():
        said = json.loads(line)
        result.stderr += "sluice: " * (said["event"] == "error") + said.get("text", "") + "\n"


def run_case(number, seed, root, shows=False):
    """(outcome, complaint or None) of a case, which depends only on its number and the seed."""
    case = draw_case(random.Random(seed * 1_000_003 + number))
    folder = root / f"case{number}" / "w"
    folder.parent.mkdir()
    (folder.parent / "cache").symlink_to(root / "cache")
    copy_template(root / "template", folder)
    before = state_of(folder)
    try:
        result = run_program(case.words, folder)
    except subprocess.TimeoutExpired:
        return "hang", f"{case.words}: did not end in {TIMEOUT_S} s"
    except ValueError:  # a word contains a NUL
        return "not run", None
    try:
        in_text(case, result)
        complaint = judge(case, folder, before, result)
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
    if shows:
        print(case, result.stdout, result.stderr, sep="\n")
    name = f"{case.command or 'none'} {result.returncode}"
    if complaint:
        complaint = f"case {number}, {case.words}: {complaint}\n    {result.stderr[-300:]}"
    return name, complaint


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int)
    parser.add_argument("--engine", action="store_true")
    options = parser.parse_args()
    for name in WITHOUT_ENGINE if options.engine else []:
        del COMMANDS[name]
    outcomes, complaints = collections.Counter(), []
    with tempfile.TemporaryDirectory(prefix="sluice-fuzz-", dir=os.getcwd()) as name:
        root = Path(name)
        (root / "cache").mkdir()
        make_template(root / "template", run_program, HAS_ENGINE)
        numbers = [options.only] if options.only is not None else range(options.cases)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for outcome, complaint in pool.map(
                    lambda number: run_case(number, options.seed, root,
                                            options.only is not None), numbers):
                outcomes[outcome] += 1
                if complaint:
                    complaints.append(complaint)
                    print(complaint, flush=True)
    codes = collections.Counter()
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")
        codes[outcome.split()[-1]] += count
    print(f"seed {options.seed}: {sum(outcomes.values())} command lines; " +
          ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items())) +
          f"; {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
