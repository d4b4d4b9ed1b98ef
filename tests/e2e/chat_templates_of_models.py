"""tools/prepare --chat on the templates that models come with, against transformers.

TRL has such a template and one with generation markers for training, which transformers turns into
a mask. Where both write the same text, our mask of the first has to be that mask, token by token.
TRL also marks a part of what the generation prompt writes, which is left out here.
"""

import datetime
import json
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import reference_packages

from corpus.chat_encode import ChatEncoder, ChatSettings

reference_packages.use()
TEMPLATES = reference_packages.folder("trl") / "trl/chat_templates"
MISSING = "" if all(map(reference_packages.is_complete, ("reference", "trl"))) else (
    "needs transformers and TRL's templates: tools/setup --for=test")
if not MISSING:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "its name"}},
        "required": ["city"]}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
RESULT = {"role": "tool", "name": "weather", "content": "7"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [user("Hi?"), assistant("Yes."), user("And\n\nnow?"), assistant("No.\n\nReally.")]
THOUGHTS = [user("Hi?"), assistant("Yes.", reasoning_content="Hmm.")]
TALKED_THOUGHTS = [*THOUGHTS, user("And?"), assistant("No.", reasoning_content="Oh.")]
CALLED = [user("Hi?"), assistant("", tool_calls=[CALL]), RESULT, assistant("Seven.")]
CALLED_THOUGHTS = [user("Hi?"), assistant("", reasoning_content="Look.", tool_calls=[CALL]), RESULT,
                   assistant("Seven.", reasoning_content="So.")]
ROWS = {"one": TALK[:2], "talk": TALK, "system": [SYSTEM, *TALK], "thoughts": THOUGHTS,
        "talked thoughts": TALKED_THOUGHTS, "called": CALLED, "called thoughts": CALLED_THOUGHTS}
PLAIN = {"one", "talk", "system"}
# The rows whose masks are compared: those of which both templates make the same text, and whose
# reasoning the generation prompt does not rule out.
COMPARED = {
    "gemma": {"one", "talk"}, "gemma3": PLAIN, "gptoss": {*ROWS} - {"called thoughts"},
    "llama3": PLAIN, "phi3": PLAIN, "phi3_5": PLAIN, "qwen2_5": {*PLAIN, "called"},
    "qwen3": {"one", "thoughts", "called thoughts"},
    "qwen3_5_nothink": {"one", "called"},
    "qwen3_5_think": {"one", "thoughts", "called", "called thoughts"},
    "qwen3_6": {"one", "thoughts", "called", "called thoughts"}, "qwen3_8": {*ROWS},
    "qwen3_instruct_2507": {*PLAIN, "called"}, "qwen3_vl": {*PLAIN, "called"}}


def tokenizer_of(templates):
    """A token for each byte, and for each of the templates' special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    tokens = {"<bos>", "<eos>", *re.findall(r"<\|?/?[a-zA-Z_]+\|?>", templates)}
    own.add_special_tokens([AddedToken(token, normalized=False) for token in sorted(tokens)])
    return PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<bos>", eos_token="<eos>")


class Model:
    def __init__(self, name, is_marked=False):
        self.plain = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        self.marked = (TEMPLATES / f"{name}_training.jinja").read_text(encoding="utf-8")
        self.tokenizer = tokenizer_of(self.plain + self.marked)
        self.encoder = ChatEncoder(ChatSettings(
            self.tokenizer.backend_tokenizer.to_str(), True, {"default": self.marked if is_marked else self.plain},
            {"bos_token": "<bos>", "eos_token": "<eos>"}, datetime.datetime.now(), name, None, {},
            "assistant", 0, False, 0, "<eos>"))

    def ours(self, messages):
        """(tokens, mask), or why the conversation is left out."""
        row = {"messages": messages, "tools": [WEATHER] if RESULT in messages else []}
        batch = self.encoder.encode([json.dumps(row).encode()])
        if batch.left_out:
            return batch.left_out[0][1:]
        (side,) = batch.sides.values()
        return memoryview(bytes(side.raw)).cast("I").tolist(), [*side.mask]

    def theirs(self, messages):
        """(tokens, mask) without what the generation prompt writes."""
        made = self.render(messages, self.marked, return_assistant_tokens_mask=True)
        tokens, mask = made["input_ids"], made["assistant_masks"]
        first, asks = (self.render([user("?")], self.plain, add_generation_prompt=asks)["input_ids"]
                       for asks in (False, True))
        prompt = asks[len(first):]
        for at in [at for at in range(len(mask)) if mask[at] > mask[at - 1]]:
            known = max(length for length in range(len(prompt) + 1)
                        if tokens[at:at + length] == prompt[len(prompt) - length:])
            mask[at:at + known] = [0] * known
        return tokens, mask

    def render(self, messages, template, **more):
        tools = [WEATHER] if RESULT in messages else None
        return self.tokenizer.apply_chat_template(messages, tools=tools, chat_template=template,
                                                  return_dict=True, **more)

    def trained(self, messages):
        """The texts of what our mask has, turn by turn."""
        texts, tokens = [], []
        ours = self.ours(messages)
        assert isinstance(ours[0], list), ours
        for token, is_trained in zip(*ours):
            if is_trained:
                tokens.append(token)
            elif tokens:
                texts, tokens = [*texts, self.tokenizer.decode(tokens)], []
        return [*texts, self.tokenizer.decode(tokens)] if tokens else texts


@unittest.skipIf(MISSING, MISSING)
class Templates(unittest.TestCase):
    def test_mask_what_transformers_masks_token_by_token(self):
        for name, rows in COMPARED.items():
            model = Model(name)
            for row in rows:
                with self.subTest(name=name, row=row):
                    tokens, mask = model.theirs(ROWS[row])
                    self.assertEqual(model.ours(ROWS[row]), (tokens, mask))
                    self.assertIn(1, mask)

    # TRL's templates keep the reasoning of earlier turns, which the models' own drop.
    def test_drop_earlier_reasoning_as_the_models_templates_do(self):
        for name in ("qwen3", "qwen3_5_think", "qwen3_6"):
            asked = "" if name == "qwen3" else "<think>\n"  # by the generation prompt
            with self.subTest(name=name):
                self.assertEqual(Model(name).trained(TALKED_THOUGHTS), [
                    "Yes.<|im_end|>\n",
                    "<think>\nOh.\n</think>\n\nNo.<|im_end|>\n"[len(asked):]])
        self.assertEqual(Model("gptoss").trained(TALKED_THOUGHTS), [
            "<|channel|>final<|message|>Yes.<|end|>",
            "<|channel|>analysis<|message|>Oh.<|end|><|start|>assistant<|channel|>final<|message|>"
            "No.<|return|>"])

    # gpt-oss drops the reasoning of a call once the answer is there. A template with markers may.
    def test_drop_the_reasoning_of_a_call_only_where_markers_say_what_to_learn(self):
        reason, detail = Model("gptoss").ours(CALLED_THOUGHTS)
        self.assertEqual((reason, detail), (
            "reasoning that the template drops", "message 2 (assistant); --train-on last, or a "
            "template with generation markers, may do"))
        marked = Model("gptoss", is_marked=True)
        self.assertEqual(marked.trained(CALLED_THOUGHTS), [
            "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
            '{"city": "Bern"}<|call|>',
            "<|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Seven.<|return|>"])
        self.assertIn("reasoning", Model("gemma", is_marked=True).ours(THOUGHTS)[0])


if __name__ == "__main__":
    unittest.main()
