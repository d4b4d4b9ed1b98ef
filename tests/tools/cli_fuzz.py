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

from fuzz_inputs import copy_template, make_template

SLUICE = os.path.abspath(os.environ["SLUICE"])
HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"
TIMEOUT_S = 60
CRASH = re.compile(r"terminate called|CHECK failed|runtime error:|Traceback|Segmentation|Sanitizer|"
                   r"core dumped|what\(\)|Exception raised from|frame #\d|std::|c10::|bad_alloc|"
                   r"nlohmann|CLI11")

# A value, and whether it is valid where it is drawn.
Value = collections.namedtuple("Value", "text good")


def good(*texts):
    return [Value(str(text), True) for text in texts]


def bad(*texts):
    return [Value(str(text), False) for text in texts]


NUMBERS_BAD = bad("-1", "-5", "nan", "inf", "abc", "", "1.5.2", "0x", "99999999999999999999999",
                  "3 4")
COUNTS_BAD = NUMBERS_BAD + bad("0", "2.5")
NO_FILES = bad("absent", "./absent/deeper", "pipe", "", "a\tb", "é")
CONFIGS = good("run.json") * 6 + NO_FILES + bad(
    "truncated.json", "binary.json", "empty.json", "folder", "list.json", "huge.json", "typo.json",
    "text.bin", "run0/metrics.jsonl")
SETS_GOOD = good("run.steps=1", "run.log_every=3", "optimizer.params.lr=0.01", "run.seed=7",
                 "gradient_clipping=1.0", "run.keep_last=1", "data.shuffle_seed=5",
                 "run.resume=newest", "scheduler.type=warmup_stable_decay", "model.activation=gelu_new",
                 'optimizer.groups=[{"match":"*.bias","weight_decay":0},{"match":"w?e.*","lr":0}]')
SETS_BAD = bad("run.steps=-1", "run.stpes=1", "run.steps", "=1", "model.heads=3", "a.b.c=1",
               "run=1", "run.steps=[1]", "model.vocab=0", "optimizer.params.lr=abc", "...=1",
               "bf16.enabled=2", "fp16.enabled=true\x01", "train_batch_size=7",
               "run.keep_last=4294967297", "scheduler.type=cosin", "gradient_clipping_value=-1",
               "model.activation=gulp", "model.norm_epsilon=0", "model.tied_head=2",
               'optimizer.groups=[{"match":"*.biass","lr":1}]', "optimizer.groups=[1]",
               'optimizer.groups=[{"match":"*"}]')
STEP = 2 if HAS_ENGINE else 0  # the existing run was trained or imported
NAME = f"step-{STEP:09}"
DIRECTORIES = good("run0") * 3 + good("run0/") + NO_FILES + bad("run.json", "empty", "text.bin",
                                                               f"damaged/checkpoints/{NAME}")
RUNS = DIRECTORIES + good(f"run0/checkpoints/{NAME}") + bad("no_manifest")
CHECKPOINTS = good(NAME, STEP, f"{STEP:09}") + bad("9", "-2", "step-x", "", "../run0", f"{STEP} ")
MODELS = good("hf", "hf_other") * 2 + NO_FILES + bad("empty", "run.json", "hf_truncated", "hf_no_config",
                                         "hf_bad_config", "hf_pipe", "text.bin")
WEIGHTS = good("hf/model.safetensors", "hf") * 2 + NO_FILES + bad(
    "empty", "run.json", "hf_truncated/model.safetensors", "text.bin", "empty.json", "hf_pipe",
    "hf_other")
DATA = good("text.bin") * 3 + NO_FILES + bad("folder", "odd.bin", "empty.json", "wide.bin")
TOKENS = good("text.bin", "chat.bin") * 3 + NO_FILES + bad(
    "folder", "odd.bin", "empty.json", "chat_cut.bin", "chat_newer.bin", "hf")
DTYPES = good("fp32", "bf16", "fp16") + bad("int8", "", "FP32", "f32")
EXISTING = "hf/model.safetensors"  # a file that --force replaces
FOLDERS = good("new", "new/deeper") * 2 + bad("run0", "run.json", "", "pipe", "text.bin/x",
                                              "/proc/nothing")

Flag = collections.namedtuple("Flag", "name values repeats")


def flag(name, values=None, repeats=False):
    return Flag(name, values, repeats)


SET = flag("--set", SETS_GOOD * 2 + SETS_BAD, True)
DEEPSPEED = flag("--deepspeed", good("ds.json") * 3 + NO_FILES + bad("truncated.json", "list.json"))
EXCLUDES = [("train", "--resume", "--overwrite"), ("train", "--resume", "--init-from"),
            ("train", "--steps", "--epochs"), ("config", "--json", "--verbose"),
            ("config", "--keys", "--json"), ("config", "--keys", "--verbose"),
            ("config", "--keys", "--set"), ("config", "--keys", "--deepspeed"),
            ("scrub", "--run", "--remove-leftovers"), ("data", "--config", "--dtype"),
            ("train", "--quiet", "--json-lines"), ("man", "--names", "COMMAND"),
            ("eval", "--json", "--csv"), ("metrics", "--json", "--markdown"), ("watch", "--web", "--plain"),
            ("eval", "--by-document", "--batches"), ("plan", "--cpu-gib", "--ram")]
NEEDED = [("scrub", "--remove", "--run"), ("train", "--dtype", "--save-weights"),
          ("train", "--force", "--save-weights"), ("train", "--set-aside-later", "--resume"),
          ("plan", "--link-gb-per-s", "--gpus"), ("plan", "--network-gb-per-s", "--nodes"),
          ("plan", "--link-latency-us", "--gpus"), ("plan", "--nodes", "--gpus"),
          ("plan", "--trace", "--simulate"), ("plan", "--force", "--trace"),
          ("tune", "--force", "--out"), ("watch", "--token", "--web"), ("data", "--set", "--config"),
          ("eval", "--csv", "--by-document")]
WATCHDOG = good("5", "0") + bad("-1", "nan", "abc", "", "1e9")  # precedes the command
MACHINE = good("24", "0.5") + bad("0", *(value.text for value in NUMBERS_BAD))

# Per command: its weight, positionals, flags. A flag with values of None takes none.
COMMANDS = {
    "config": (5, [CONFIGS], [SET, DEEPSPEED, flag("--json"), flag("--verbose"), flag("--keys")]),
    "data": (6, [TOKENS],
             [flag("--json"), flag("--plain"), flag("--config", CONFIGS), SET,
              flag("--sequence-length", good("4", "8") + COUNTS_BAD),
              flag("--dtype", good("uint16") + bad("int8", "", "uint8")),
              flag("--samples", good("0", "1", "5") + NUMBERS_BAD),
              flag("--at", good("0", "399", "77") + bad("400", "9999") + NUMBERS_BAD),
              flag("--seed", good("0", "7") + NUMBERS_BAD),
              flag("--tokens", good("0", "3") + NUMBERS_BAD),
              flag("--tokenizer", good("bytes") + bad("absent", "", "hf", "run.json"))]),
    "doctor": (1, [good(".", "run0", "nvme") + NO_FILES + bad("run.json")],
               [flag("--json"), flag("--quick")]),
    "ls": (5, [DIRECTORIES + good("no_manifest")], [flag("--verify"), flag("--json")]),
    "diff": (4, [DIRECTORIES + good("run0/metrics.jsonl")] * 2, []),
    "metrics": (1, [], [flag("--keys"), flag("--json"), flag("--markdown")]),
    "completion": (1, [good("bash", "zsh", "fish") + bad("ksh", "", "BASH", "bash fish")], []),
    "man": (1, [], [flag("--names")]),
    "report": (4, [DIRECTORIES + good("run0/metrics.jsonl", "no_manifest")],
               [flag("--out", good("page.html") * 3 + bad("", "absent/p.html", "folder",
                                                          "pipe", "text.bin/x")),
                flag("--drive-tbw", good("600", "0.5") + NUMBERS_BAD + bad("0")),
                flag("--force")]),
    # It neither waits for a run nor serves a page here, because it would not end by itself.
    "watch": (2, [good("--no-wait"), DIRECTORIES], [
        flag("--every", good("0.1", "2") + NUMBERS_BAD + bad("0", "4000")), flag("--plain"),
        flag("--web", bad("", "8080", ":1", "127.0.0.1:", "no.invalid:1", "127.0.0.1:65536", "::1:1")),
        flag("--token", bad("", "short", "0123456789abcdef"))]),
    "scrub": (4, [good("run0", "run0/", "nvme", ".", "empty", "no_manifest") + NO_FILES +
                  bad("run.json", f"damaged/checkpoints/{NAME}")],
              [flag("--run", bad("absent", "", "run0")), flag("--remove"),
               flag("--remove-leftovers")]),
    "export": (5, [RUNS, FOLDERS],
               [flag("--checkpoint", CHECKPOINTS), flag("--dtype", DTYPES),
                flag("--max-shard-size", good("5G", "4K", "0") + bad("-1", "abc", "", "1Q")),
                # For adapters; this run has a whole model. tests/e2e/lora_with_peft.py tests them.
                flag("--merged"), flag("--base", bad("hf", "absent", ""))]),
    "import": (5, [MODELS, FOLDERS], []),
}
WITHOUT_ENGINE = list(COMMANDS)
if HAS_ENGINE:
    COMMANDS.update({
        "train": (8, [CONFIGS],
                  [flag("--out", good("new", "out2", "run0") * 2 +
                        bad("", "run.json", "text.bin/x")),
                   flag("--steps", good("1", "2", "3") + COUNTS_BAD),
                   flag("--epochs", good("0.01") + NUMBERS_BAD + bad("0")),
                   flag("--resume"), flag("--overwrite"), flag("--set-aside-later"),
                   flag("--resume=", good(NAME, STEP) + bad("9", "step-x")),
                   flag("--any-tokenizer"),
                   flag("--save-weights", good("w.safetensors", EXISTING) + bad(
                       "w.bin", "absent/w.safetensors", "folder", "",
                       "pipe.safetensors", "run.json/w.safetensors")),
                   flag("--dtype", DTYPES), flag("--force"),
                   flag("--init-from", WEIGHTS),
                   flag("--trace", good("1:1") +
                        bad("5:9", "2:1", "x", "", "-1:2", "1:", ":", "0:1")),
                   flag("--quiet"), flag("--json-lines"),
                   flag("--log-every", good("1", "3") + COUNTS_BAD),
                   flag("--signal-exit-code", good("0", "75") + bad("256", "-1", "x", "")),
                   SET, DEEPSPEED]),
        "eval": (4, [CONFIGS],
                 [flag("--weights", WEIGHTS), flag("--data", DATA + good("chat.bin") * 3),
                  flag("--json"), flag("--by-document"), flag("--csv"),
                  flag("--batches", good("1", "2") + COUNTS_BAD), flag("--any-tokenizer"),
                  flag("--adapter", bad("hf", "absent", "", "text.bin", "run0")), SET]),
        "generate": (4, [RUNS],
                     [flag("--prompt", good("123", "4 2") + bad("", "abc", "\xe9\xe9", "\x7f~{|}")),
                      flag("--tokens", good("1", "5") + COUNTS_BAD), flag("--tokenizer", good(
                          "bytes") + bad("absent", "")),
                      flag("--temperature", good("0", "0.7") + NUMBERS_BAD),
                      flag("--top-k", good("1", "5") + bad("-1", "abc", "2.5")),
                      flag("--top-p", good("0.5", "1") + bad("0", "1.5", *(
                          value.text for value in NUMBERS_BAD))),
                      flag("--seed", good("0", "7") + bad("-1", "abc", "1.5")),
                      flag("--checkpoint", CHECKPOINTS)]),
        # These runs have no chat template. tests/e2e/chat_with_transformers.py talks with a model.
        "chat": (1, [bad("run0", "run0/best", "absent", "")],
                 [flag("--tokens", good("1", "5") + COUNTS_BAD), flag("--system", good("x")),
                  flag("--chat-template", good("run.json") + bad("absent")),
                  flag("--temperature", good("0", "0.7") + NUMBERS_BAD),
                  flag("--checkpoint", CHECKPOINTS)]),
        "plan": (4, [CONFIGS],
                 [flag("--json"), flag("--simulate", good("1", "2") + COUNTS_BAD),
                  flag("--trace", good("t.json") + bad("folder", "run.json", "", "absent/t.json")),
                  flag("--gpus", good("2") + COUNTS_BAD), flag("--nodes", good("2") + COUNTS_BAD),
                  flag("--link-gb-per-s", MACHINE), flag("--network-gb-per-s", MACHINE),
                  flag("--link-latency-us", MACHINE),
                  flag("--gpu", good("rtx4090", "H200") + bad("voodoo2", "")),
                  flag("--ram", good("64") + bad("0", "nan", "x")),
                  flag("--data-tokens", good("1000000") + bad("0", "-1", "inf")),
                  flag("--drive-tbw", good("600") + bad("0", "x")),
                  flag("--gpu-gib", MACHINE), flag("--cpu-gib", MACHINE),
                  flag("--ram-gb-per-s", MACHINE), flag("--force"), SET]),
        "profile": (1, [CONFIGS],
                    [flag("--steps", good("1", "2") + COUNTS_BAD), flag("--json"), flag("--units"),
                     flag("--warmup", good("1") + COUNTS_BAD),
                     flag("--out", good("p.txt") * 2 + bad("folder", "", "absent/p")),
                     flag("--trace", good("t.json") + bad("folder", "", "absent/t")),
                     flag("--force"), SET]),
        "tune": (1, [CONFIGS],
                 [flag("--out", bad("run.json", "absent/b.json", "", "folder")),
                  flag("--trials", bad("0", "-1", "x")), flag("--steps", bad("0", "-2")),
                  flag("--budget-minutes", bad("0", "nan", "-1"))]),
    })

Case = collections.namedtuple("Case", "words command flags mistakes")


def misspelt(draw, word):
    at = draw.randrange(2, len(word))
    return word[:at] + draw.choice("qzxj") + word[at:]


def resumes(given):
    return "--resume" in given or any(one.startswith("run.resume=")
                                      for one in given.get("--set", []))


def train_mistakes(given):
    """Conflicts between flags of train, in addition to EXCLUDES and NEEDED."""
    out, keys = given.get("--out", [""])[-1], given.get("--set", [])
    by_key = any(one.startswith("run.resume=") for one in keys)
    if given.get("--save-weights", [""])[-1] == EXISTING and "--force" not in given:
        yield "a file that is there without --force"
    if by_key and ({"--overwrite", "--init-from"} & set(given)):
        yield "run.resume with --overwrite or --init-from"
    if "--resume=" in given and out != "run0":
        yield "--resume=NAME in a new folder"
    if out == "run0" and not resumes(given) and "--overwrite" not in given:
        yield "a run that is there"
    if out == "run0" and resumes(given):
        if any(one.startswith(("run.seed=", "data.shuffle_seed=")) for one in keys):
            yield "--resume of another run"
        if "--trace" in given:
            yield "--trace of a step that is done"


def draw_case(draw):
    """A case; half of the cases have only valid values, so that commands do their work."""
    sensible = draw.random() < 0.5
    cases = (draw_one(draw, sensible) for _ in range(20 if sensible else 1))
    drawn = next((case for case in cases if not case.mistakes), None)
    return drawn or draw_one(draw, sensible)


def draw_one(draw, sensible):
    """Words and their mistakes; without mistakes, the words are valid."""
    kind = draw.random()
    names = list(COMMANDS)
    if kind < 0.03:
        words = draw.choice(([], ["trian"], ["--fast"], ["", "x"], ["-"], ["config", "--"],
                             ["lss", "run0"], ["run.json"], ["train "], ["--out", "new"]))
        return Case(words, "", {}, ["no such command"])
    command = draw.choices(names, [COMMANDS[name][0] for name in names])[0]
    _, positionals, flags = COMMANDS[command]
    words, mistakes, given = [], [], {}

    def value_of(values):
        fitting = [value for value in values if value.good] if sensible else values
        value = draw.choice(fitting or values)
        if not value.good:
            mistakes.append(f"value {value.text!r}")
        return value.text

    before = []
    if draw.random() < 0.05:
        before = ["--io-watchdog", value_of(WATCHDOG)]
        given["--io-watchdog"] = before[1:]
    left_out = draw.random() < 0.05 and bool(positionals)
    for values in positionals:
        if not left_out:
            words.append(value_of(values))
    chosen = draw.sample(flags, min(len(flags), draw.choice((0, 1, 1, 2, 2, 3, 4))))
    if command == "train" and draw.random() < 0.9:
        chosen += [one for one in flags if one.name == "--out" and one not in chosen]
    if command == "tune" and not chosen:  # a search, which takes minutes
        chosen = [draw.choice(flags)]
    if command == "report" and draw.random() < 0.9:
        chosen += [one for one in flags if one.name == "--out" and one not in chosen]
    if command == "eval" and draw.random() < 0.9:
        chosen += [one for one in flags if one.name == "--weights" and one not in chosen]
    if command == "generate" and draw.random() < 0.9:
        chosen += [one for one in flags if one.name in ("--prompt", "--tokenizer")
                   and one not in chosen]
    for one in chosen:
        name, values, repeats = one
        times = 2 if draw.random() < 0.03 else 1
        for time in range(times):
            if values is None:
                valued = draw.random() < 0.02 and name != "--resume"
                words.append(name + ("=maybe" if valued else ""))
                given[name] = True
                if valued:
                    mistakes.append(f"{name} with a value")
                continue
            text = value_of(values)
            if name.endswith("="):
                words.append(name + text)
                if name.rstrip("=") in given:
                    mistakes.append(f"{name} twice")
                given[name.rstrip("=")] = True
            elif draw.random() < 0.2:
                words.append(f"{name}={text}")
            else:
                words += [name, text]
            given.setdefault(name, []).append(text)
            if time == 1 and not repeats:
                mistakes.append(f"{name} twice")
    if draw.random() < 0.03:
        words.append(misspelt(draw, draw.choice(flags).name if flags else "--json"))
        mistakes.append("no such option")
    if draw.random() < 0.02 and not mistakes:
        words.append("surplus")
        mistakes.append("one word too many")
    for owner, first, second in EXCLUDES:
        if owner == command and first in given and second in given:
            mistakes.append(f"{first} with {second}")
    if command == "scrub" and "--remove-leftovers" in given and words[0] in (
            "run0", "run0/", "no_manifest"):
        mistakes.append("--remove-leftovers without a path of stores")
    for owner, first, second in NEEDED:
        if owner == command and first in given and second not in given:
            mistakes.append(f"{first} without {second}")
    if command == "train":
        mistakes += train_mistakes(given)
    if command == "export" and "--merged" in given:
        mistakes.append("--merged of a whole model")
    if command == "metrics" and "--keys" not in given:
        mistakes.append("metrics without --keys")
    if command == "report":
        mistakes += ["report without --out"] * ("--out" not in given)
    if (command == "eval" and "--by-document" in given and
            given.get("--data", [""])[-1] != "chat.bin"):
        mistakes.append("--by-document of one text")
    spared = {"config": {"--keys", "--deepspeed"}, "data": {"--config"}}
    if left_out and command != "doctor" and not spared.get(command, set()) & set(given):
        mistakes.append("a positional is missing")
    if command == "config" and "--keys" in given and not left_out:
        mistakes.append("--keys with a configuration")
    return Case([*before, command, *words], command, given, mistakes)


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
