"""The files of a Hugging Face folder that belong to tokenizer.json: the chat template, the names of
the special tokens, and their companions.

The template is chat_template.jinja, with others by name in additional_chat_templates/. Without it,
"chat_template" of tokenizer_config.json is used, which may be a list of named ones. "default" is
for conversations, and "tool_use", if present, for those with tools.

Special tokens are those of both tokenizer_config.json and special_tokens_map.json. The former takes
precedence if it lists added tokens, and otherwise the latter.
"""

import os
import re
import subprocess
from pathlib import Path

from toolbox import ROOT, Failure, read_json

TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
TOOL_TEMPLATE_FILE = f"{MORE_TEMPLATES}/tool_use.jinja"
CONFIG_FILE = "tokenizer_config.json"
MAP_FILE = "special_tokens_map.json"
# The files that a run needs in addition to tokenizer.json.
COMPANIONS = (CONFIG_FILE, MAP_FILE, TEMPLATE_FILE, TOOL_TEMPLATE_FILE, "generation_config.json")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                  "mask_token")


# The hub's owners by prefixes of model names, and folder names that are no owner's.
OWNERS = {"qwen": "Qwen", "llama": "meta-llama", "mistral": "mistralai", "ministral": "mistralai",
          "gpt2": "openai-community"}
PLAIN_FOLDERS = ("models", "model", "base", "weights", "checkpoints", "hf", "data", "out", "runs")


def is_hub_name(text):
    """Whether it is OWNER/NAME or OWNER/NAME@REVISION, and no path; the same rule as in
    engine/exchange/described_model.cc."""
    name = re.fullmatch(r"([A-Za-z0-9][\w.-]*)/[A-Za-z0-9][\w.-]*(@.+)?", text, re.ASCII)
    return bool(name) and name[1] not in PLAIN_FOLDERS and not os.path.exists(name[1]) \
        and not text.partition("@")[0].endswith((".safetensors", ".json", ".bin"))


def from_hub(text):
    """The folder of a tokenizer that is given by its model's name on the hub; other texts as they
    are."""
    if not is_hub_name(text):
        return text
    read_end, write_end = os.pipe()
    with open(read_end, encoding="utf-8") as replies:
        try:  # another program: its packages may be in another environment
            subprocess.run([ROOT / "tools/hub", "--files", "tokenizer", "--reply-fd", str(write_end),
                            text], pass_fds=[write_end], stdin=subprocess.DEVNULL, stdout=2,
                           check=False)
        finally:
            os.close(write_end)
        reply = replies.read()
    reply = read_json(reply) if reply else {
        "error": f"{text} was not found: tools/hub ended without an answer; see its message above"}
    if "error" in reply:
        raise Failure(reply["error"])
    return reply["folder"]


def check_is_there(path):
    """Explains a missing path: it may be the folder of a model that has to be downloaded."""
    path = Path(path)
    if path.exists():
        return
    if path.suffix == ".json":
        raise Failure(f"there is no file {path}: name the tokenizer.json, or the folder of the "
                      "model that has it")
    raise Failure(f"there is no folder {path}: fetch it by\n\n  {download_command(path)}\n\nor name "
                  "the folder that has it, or the model on the hub as OWNER/NAME")


def download_command(path):
    """The same rule as in engine/exchange/described_model.cc."""
    name = path.name.lower()
    owner = next((owner for word, owner in OWNERS.items() if name.startswith(word)), "OWNER")
    if len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in PLAIN_FOLDERS \
            and not path.parts[0].startswith("."):
        owner = path.parts[0]
    return f"hf download {owner}/{path.name} --local-dir {path}"


class TokenizerFolder:
    """templates, special_tokens: name -> text, companions: name -> bytes."""

    def __init__(self, path, template_path=None):
        self.path = Path(path)
        check_is_there(self.path)
        folder = self.path if self.path.is_dir() else self.path.parent
        self.companions = {name: _read(folder / name) for name in COMPANIONS
                           if (folder / name).is_file()}
        self._config = self._json(folder, CONFIG_FILE)
        self.special_tokens = _special_tokens(self._config, self._json(folder, MAP_FILE))
        self.templates, self.template_from = self._found(folder, template_path)
        if template_path:
            self.companions[TEMPLATE_FILE] = self.templates["default"].encode()
            self.companions.pop(TOOL_TEMPLATE_FILE, None)

    @property
    def says_special_tokens(self):
        return CONFIG_FILE in self.companions or MAP_FILE in self.companions

    def check_added_tokens(self, token_to_id):
        """Refuses tokens that only tokenizer_config.json adds: they would be split into pieces."""
        added = self._config.get("added_tokens_decoder")
        for number, token in (added.items() if isinstance(added, dict) else ()):
            text = _token_text(token)
            if text is not None and str(token_to_id(text)) != number:
                raise Failure(f"{CONFIG_FILE} says that '{text}' is token {number}, and for "
                              f"tokenizer.json it is {token_to_id(text)}: save the tokenizer again "
                              "by transformers' save_pretrained()")

    def _json(self, folder, name):
        try:
            content = read_json(self.companions.get(name, b"{}"))
        except ValueError as error:
            raise Failure(f"{folder / name} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise Failure(f"{folder / name} is not a JSON object")
        return content

    def _found(self, folder, template_path):
        """The templates by name, and the file that contains them."""
        if template_path:
            return {"default": _text(Path(template_path))}, str(template_path)
        more = ({"tool_use": _text(folder / TOOL_TEMPLATE_FILE)}
                if TOOL_TEMPLATE_FILE in self.companions else {})
        if TEMPLATE_FILE in self.companions:
            return {"default": _text(folder / TEMPLATE_FILE), **more}, str(folder / TEMPLATE_FILE)
        found = self._config.get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found
                     if isinstance(entry, dict)}
            if "default" not in named:
                raise Failure(f"{folder / CONFIG_FILE} has the chat templates "
                              f"{', '.join(map(str, named))} and none called default: write the "
                              "one to use into a file, and name it by --chat-template")
            found = {name: text for name, text in named.items()
                     if isinstance(name, str) and isinstance(text, str) and text}
        elif isinstance(found, str) and found:
            found = {"default": found}
        if not isinstance(found, dict) or "default" not in found:
            raise Failure(f"{self.path} has no chat template, neither in {TEMPLATE_FILE} nor in "
                          f"{CONFIG_FILE}: it is a base model's, perhaps. Take the folder of the "
                          "model that was trained to chat, or name a template by --chat-template "
                          "FILE")
        return {**more, **found}, str(folder / CONFIG_FILE)


def tokenizer_json(path):
    """The file itself, if the path may be that of its folder."""
    path = Path(path)
    check_is_there(path)
    if not path.is_dir():
        return path
    if not (path / "tokenizer.json").is_file():
        raise Failure(f"the folder {path} has no tokenizer.json: transformers writes one by "
                      "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    return path / "tokenizer.json"


def _special_tokens(config, older):
    first, second = (config, older) if "added_tokens_decoder" in config else (older, config)
    named = {}
    for source in (second, first):
        found = {name: source[name] for name in source
                 if name in SPECIAL_TOKENS or name.endswith("_token")}
        more = source.get("extra_special_tokens")
        found.update(more if isinstance(more, dict) else {})
        named.update((name, _token_text(token)) for name, token in found.items()
                     if _token_text(token) is not None)
    return named


def _token_text(token):
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read(path):
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from error


def _text(path):
    if path.exists() and not path.is_file():  # a pipe would block
        raise Failure(f"the chat template {path} is not a regular file")
    try:
        return _read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Failure(f"the chat template {path} is not UTF-8: {error}") from error
