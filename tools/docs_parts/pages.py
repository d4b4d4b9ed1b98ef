"""The pages that are made from what the program says of itself."""

import html
import re

from docs_parts.program import output_of
from toolbox import ROOT

# Programs whose --help is shown as it is.
OTHERS = ("tools/demo", "sluice-log", "aio_bench")
NAMES = ("command-line.md", "configuration.md", "metrics.md")
SOURCES = {"DeepSpeed's": "DeepSpeed", "Hugging Face's": "Hugging Face", "Sluice's own": "Sluice",
           "an older key of DeepSpeed": "older DeepSpeed"}


def make(program):
    """{name in docs/: text} of the pages."""
    texts = (command_line(program), configuration(program),
             output_of([program.path, "metrics", "--keys", "--markdown"]))
    return dict(zip(NAMES, texts))


# What is code in the program's sentences: --option, --set key=value, "value", a.dotted.key of a run
# file, and a name_with_underscores.
_CODE = re.compile(
    r"(?<![\w`/.$-])(?:--[a-z][\w-]*(?:=[\w.]+|(?<=--set) [a-z_]+(?:\.[a-z_]+)+=[\w.]+)?"
    r"|\"[A-Za-z0-9][\w.-]*\"|[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?:\.[a-z_0-9]+)*"
    r"|(?:run|data|model|budget|placement|optimizer|scheduler|recipe)"
    r"\.[a-z_]+(?:\.[a-z_0-9]+)*)(?![\w/(-])")


def escaped(text, in_table=False):
    """Text of the program as Markdown that shows just that, with options and keys as code."""
    made, end = [], 0
    for found in _CODE.finditer(text):
        made += [_shown(text[end:found.start()]), code(found[0])]
        end = found.end()
    made.append(_shown(text[end:]))
    return "".join(made).replace("|", "\\|") if in_table else "".join(made)


def _shown(text):
    text = re.sub(r"([*\\`\[\]])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def code(text):
    mark = "``" if "`" in text else "`"
    # An option is not to be broken after its dashes.
    return f"{mark}{text}{mark}" + ("{ .option }" if text.startswith("--") else "")


# --- the command line ----------------------------------------------------------------------------

def _value(text):
    """What a help line says of a value, in words: (what is given, remarks)."""
    remarks = []
    if "REQUIRED" in text:
        text = text.replace("REQUIRED", "").strip()
        remarks.append("required")
    default = re.search(r"(?<!^\[)=([^\]]+)$", text)
    if default and not text.startswith("[="):
        remarks.append(f"default {code(default[1])}")
        text = text[:default.start()]
    limits = re.search(r":\w+ in \[(\S+) - (\S+)\]$", text)
    if limits:
        remarks.append(f"{limits[1]} to {limits[2]}")
        text = text[:limits.start()]
    choices = re.search(r":\{([^}]*)\}$", text)
    if choices:
        remarks.append("one of " + ", ".join(code(choice) for choice in choices[1].split(",")))
        text = text[:choices.start()]
    if text.endswith(" ..."):
        text = text[:-len(" ...")]
        remarks.append("may be repeated")
    return text, remarks


def _option_row(option):
    value, remarks = _value(option.value)
    if value and not option.names[0].startswith("-"):
        value = ""  # TEXT, after the name of a positional
    names = ", ".join(code(name) for name in option.names)
    shown = names + (f" {code(value)}" if value and not value.startswith("[") else
                     code(value) if value else "")
    if value.startswith("["):  # --resume[=newest]
        shown = code(option.names[0] + value)
    for kind, words in (("Needs", "only with"), ("Excludes", "not with")):
        if kind in option.rules:
            remarks.append(f"{words} " + ", ".join(code(name) for name in option.rules[kind]))
    meaning = escaped(option.meaning, in_table=True)
    if remarks:
        meaning += f"{' ' if meaning else ''}({'; '.join(remarks)})"
    return f"| {shown} | {meaning} |"


def _remarks(lines):
    """What follows the options: indented lines are commands, or what a table shows."""
    made, shown = [], []

    def close():
        if shown:
            made.extend(["", "```sh" if _are_commands(shown) else "```text",
                         *[line[2:] for line in shown], "```", ""])
            shown.clear()

    for line in lines:
        if line.startswith("  "):
            shown.append(line)
        elif not line.strip():
            close()
            made.append("")
        else:
            close()
            made.append(escaped(line))
    close()
    return made


def _are_commands(lines):
    first = lines[0].split()
    return first[0] in ("sluice", "sluice-log", "source", "python3", "curl")


def _options(sections):
    for section in sections:
        options = [option for option in section.options if "--help" not in option.names]
        if not options or section.title == "Subcommands":
            continue
        title = {"Positionals": "Argument", "Options": "Option"}.get(section.title)
        if title is None:
            yield from ("", f"**{escaped(section.title)}**")
        yield from ("", f"| {title or 'Option'} | Meaning |", "|---|---|")
        yield from (_option_row(option) for option in options)


def command_line(program):
    commands = program.commands()
    made = ["# Command line", "",
            "This page is generated from what `sluice --help` and `sluice COMMAND --help` print.",
            "`sluice man COMMAND | man -l -` shows the same as a manual page.", "",
            "```text", "sluice [OPTIONS] COMMAND ...", "```",
            *_options(program.help().sections), "", "| Command | What it does |", "|---|---|"]
    made += [f"| [`sluice {name}`](#sluice-{name}) | {escaped(meaning, True)} |"
             for name, meaning in commands.items()]
    for name in commands:
        if program.is_script(name):
            made += ["", f"## sluice {name}", "", f"{escaped(commands[name])}.", "",
                     *_help_as_it_is([program.path, name])]
            continue
        told = program.help(name)
        made += ["", f"## sluice {name}", "", f"{escaped(told.summary)}.", "",
                 "```text", told.usage, "```", *_options(told.sections), "",
                 *_remarks(told.lines)]
    for name in OTHERS:
        path = ROOT / name if "/" in name else program.path.parent / name
        if path.exists():
            made += ["", f"## {name}", "", *_help_as_it_is([path])]
    return _joined(made)


def _help_as_it_is(command):
    return ["```text", output_of([*command, "--help"]).rstrip(), "```"]


# --- the configuration ---------------------------------------------------------------------------

_INTRODUCTION = """\
# Configuration

This page is generated from what `sluice config --keys` prints.

A run file is JSON; comments (`//`) are allowed. The keys of DeepSpeed keep their names and
meanings. Keys that DeepSpeed does not have are in sections of their own.

- Set a key on the command line with `--set`, as in `--set run.steps=100`.
- See what a run file means, and what becomes of each of its keys, with `sluice config FILE`.
- An unknown key is an error. The message names the nearest key that exists.
- A value of `"auto"` is derived from other keys, as the entry of a key says.

The search field finds every key by its name.
"""

# What a section is about; one that is not here has its name alone.
_TITLES = {
    "train_batch_size": "Batch", "optimizer": "Optimizer", "fp16": "Precision: fp16",
    "bf16": "Precision: bf16", "gradient_clipping": "Gradients and log",
    "tensorboard": "TensorBoard", "csv_monitor": "CSV files", "wandb": "Weights & Biases",
    "flops_profiler": "Profile of one step", "scheduler": "Learning rate",
    "zero_optimization": "ZeRO and offload", "activation_checkpointing": "Activation checkpointing",
    "aio": "Drive access (aio)", "model": "Model", "data": "Data", "run": "Run",
    "budget": "Memory and drives", "placement": "Placement", "recipe": "Recipe"}


def _sections(keys):
    """{title: keys}: those of one section together, keys at the top level with what they follow."""
    sections, others = {}, "Other keys of DeepSpeed"
    for key in keys:
        first = key.path.split(".")[0]
        if first in _TITLES:
            title = _TITLES[first]
        elif "." in key.path:
            title = first
        elif first.startswith(("train_", "gradient_acc", "managed_")):
            title = _TITLES["train_batch_size"]
        elif key.status == "honoured":
            title = _TITLES["gradient_clipping"]
        else:
            title = others
        sections.setdefault(title, []).append(key)
    if others in sections:  # they come last
        sections[others] = sections.pop(others)
    return sections


def _entry(key):
    made = ["", f"### `{key.path}` {{ #{key.path} }}", "",
            f"{_sentence(key.meaning)}." if key.meaning else "", "",
            f"- Values: {escaped(key.values)}", f"- Default: {_default(key.default)}"]
    for note in key.notes:
        begin, colon, rest = note.partition(": ")
        if begin == '"auto"':
            made.append(f"- `\"auto\"`: {escaped(rest)}")
        else:
            made.append(f"- {_sentence(note)}")
    made.append(f"- Origin: {SOURCES.get(key.source, escaped(key.source))}")
    return made


def _default(text):
    return text if text == "unset" else code(text)


def _sentence(text):
    if re.match(r"[a-z]+(?:-[a-z]+)*(?= |,)", text):  # not a key's name
        text = text[0].upper() + text[1:]
    return escaped(text)


def configuration(program):
    made = [_INTRODUCTION]
    for title, keys in _sections(program.keys()).items():
        made += ["", f"## {escaped(title)}"]
        for key in keys:
            if key.status == "honoured":
                made += _entry(key)
        other = [key for key in keys if key.status != "honoured"]
        if not other:
            continue
        if len(other) < len(keys):
            made += ["", f"### Other keys in this section: {escaped(title)}"]
        made += ["", "| Key | What becomes of it | Reason |", "|---|---|---|"]
        for key in other:
            what = escaped(key.values, True)
            if key.status in ("the same as", "the old name of"):
                named = f"[`{key.values}`](#{key.values})" if any(
                    known.path == key.values and known.status == "honoured"
                    for known in program.keys()) \
                    else what
                what = f"{key.status[len('the '):]} {named}"
            made.append(f"| <span id=\"{key.path}\"></span>`{key.path}` | {what} | "
                        f"{escaped('; '.join(filter(None, (key.meaning, *key.notes))), True)} |")
    return _joined(made)


def _joined(lines):
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
