"""The command lines that cli_fuzz.py draws: commands, their flags, and values that are valid or not.

SLUICE_HAS_ENGINE=1 when the program was built with LibTorch.
"""

import collections
import os

HAS_ENGINE = os.environ.get("SLUICE_HAS_ENGINE") == "1"

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
    "copy": (4, [RUNS, FOLDERS], [flag("--checkpoint", CHECKPOINTS)]),
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
