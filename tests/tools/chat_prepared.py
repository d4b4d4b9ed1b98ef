"""Shared by tests of tools/prepare --chat: templates, and readers of the output."""

import hashlib
import json
import sys
from array import array
from itertools import groupby
from pathlib import Path

sys.dont_write_bytecode = True

import prepared

import tool_packages  # on the path that prepared has added
from toolbox import Failure

CHATML = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|head|>' ~ message['role'] ~ '<|head_end|>\\n\\n' }}
{{- message['content'] | trim ~ '<|turn_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|head|>assistant<|head_end|>\\n\\n' }}
{%- endif %}"""

INST = """\
{{- bos_token -}}
{%- for message in messages -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant have to take turns') -}}
  {%- endif -%}
  {%- if message.role == 'user' -%}[INST] {{ message.content }}[/INST]
  {%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}
{%- endfor -%}"""

# Writes reasoning, even if empty, only in turns after the last question.
THINKS = """\
{%- set last = namespace(question=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set said = message.content or '' %}
{%- set reasoning = message.reasoning_content or '' %}
{%- if '</think>' in said %}
{%- set reasoning = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.index0 > last.question and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
{%- endif %}
{{- said }}
{%- for call in message.tool_calls or [] %}
{{- '<call>' + call.function.name + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

MARKED = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- if message.content == 'stop' %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_TOKENS = {"eos_token": "<|im_end|>"}
HEADERS_TOKENS = {"bos_token": "<|bos|>",
                  "eos_token": {"__type": "AddedToken", "content": "<|turn_end|>"}}
INST_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|bos|>", "<|head|>", "<|head_end|>", "<|turn_end|>",
            "<s>", "</s>", "[INST]", "[/INST]"]

TALK = [("system", "Be brief. Ü"), ("user", "What flows?"), ("assistant", " Water. 水 🌊 "),
        ("user", "And else?"), ("assistant", "The wind.\nAnd time.")]


def messages(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def asked(answer, question="q"):
    return {"messages": messages(("user", question), ("assistant", answer))}


class Prepared(prepared.Prepared):
    def rows(self, rows, name="chat.jsonl"):
        return self.write(name, "".join((row if isinstance(row, str) else json.dumps(row)) + "\n"
                                        for row in rows))

    def tokenizer(self, template=CHATML, config=None, name="tok"):
        """A folder with a byte-level BPE, in the layout of Hugging Face."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.post_processor = processors.ByteLevel(trim_offsets=True)
        made.train_from_iterator(
            ["user assistant system What flows? Water. And time. The wind."] * 3,
            trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIALS, show_progress=False,
                                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
        return self.save(made, template, config, name)

    def save(self, made, template, config, name="tok"):
        self.write(f"{name}/tokenizer.json", made.to_str())
        self.write(f"{name}/tokenizer_config.json", json.dumps(config or CHATML_TOKENS))
        if template is not None:
            self.write(f"{name}/chat_template.jinja", template)
        return self.folder / name

    def prepare(self, *arguments, tokenizer=None, out=None):
        """A run that has to succeed; without validation data unless the arguments ask for it."""
        if "--validation-fraction" not in arguments:
            arguments += ("--validation-fraction", 0)
        result = self.run_tool("--chat", *arguments, "--out", out or self.out, "--tokenizer",
                               tokenizer or "tok")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *arguments, tokenizer=None, code=1):
        """stderr of a run that has to fail and to leave no files."""
        result = self.run_tool("--chat", *arguments, "--out", self.out, "--tokenizer",
                               tokenizer or "tok")
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        self.assertFalse(self.out.exists())
        self.assertEqual(list(self.folder.glob(".out*")), [])
        return result.stderr

    def documents(self, name="train.bin", out=None):
        """For each conversation: its tokens, and a list of 1 for each trained token and 0 for
        others."""
        path = (out or self.out) / name
        tokens = self.tokens(name, out)
        begins = array("Q")
        begins.frombytes(Path(f"{path}.documents").read_bytes())
        bits = Path(f"{path}.mask").read_bytes()
        self.assertEqual(len(bits), (len(tokens) + 7) // 8)
        mask = [bits[token // 8] >> token % 8 & 1 for token in range(len(tokens))]
        self.assertEqual(begins[-1], len(tokens))
        return [(tokens[begin:end], mask[begin:end])
                for begin, end in zip(begins, begins[1:])]

    def pieces(self, name="train.bin", out=None):
        """For each conversation: its text, in pieces that are trained on (True) and others."""
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str((out or self.out) / "tokenizer.json"))
        return [[(tokenizer.decode([token for token, _ in run], skip_special_tokens=False),
                  bool(trained)) for trained, run in groupby(zip(*document), lambda each: each[1])]
                for document in self.documents(name, out)]

    def trained(self):
        """For each conversation: the pieces that are trained on."""
        return [[text for text, trained in document if trained] for document in self.pieces()]

    def contents(self, out=None):
        """Hashes of the files that do not name their sources."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted((out or self.out).iterdir())
                if path.name not in ("train.bin.json", "val.bin.json")}


def missing():
    """The packages that these tests lack, as a sentence; "" if none."""
    try:
        tool_packages.need(["tokenizers", "jinja2", "markupsafe", "pyarrow"], "this test")
    except Failure as failure:
        return str(failure)
    return ""
