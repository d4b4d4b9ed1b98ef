"""Who said what, out of a row: the forms in which rows have conversations, as OpenAI's messages.

What cannot be trained on is left out with one of the reasons of left_out.py.
"""

import json
from collections import namedtuple

from corpus.left_out import (EMPTY_TURN, NO_ASSISTANT, NO_FORM, NOT_JSON, NOT_TEXT, REJECTED,
                             UNTRAINED, WEIGHED, LeftOut)
from toolbox import read_json

FORMS = ("messages", "sharegpt", "alpaca", "completion")
TURN_KEYS = ("messages", "conversations", "conversation")
SYSTEM_KEYS = ("system", "system_prompt")
MEDIA_KEYS = ("image", "images", "video", "videos", "audio", "audios")
VERDICT_KEYS = ("label", "kto_tag")  # of an answer, as KTO has them
TEXT_KEYS = ("instruction", "input", "output", "prompt", "completion")
WEIGHT_KEY = "weight"  # of a row, as of a turn
ROW_KEYS = (*TURN_KEYS, *TEXT_KEYS, *SYSTEM_KEYS, "history", "tools", "functions", *VERDICT_KEYS,
            WEIGHT_KEY, *MEDIA_KEYS)
MESSAGE_KEYS = ("role", "content", "from", "value")
SAME_MEANING = (TURN_KEYS, SYSTEM_KEYS, ("role", "from"), ("content", "value"))
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "chatgpt": "assistant", "model": "assistant", "ai": "assistant", "bot": "assistant",
            "system": "system", "developer": "developer", "tool": "tool", "observation": "tool",
            "function": "tool", "tool_response": "tool", "function_response": "tool",
            "function_call": "function_call", "tool_call": "function_call"}
# Marks on a turn, by whether they say that it is trained on, or that it is not.
TRAINED_MARKS = ("train", "training", "trainable", "loss", "loss_weight", "loss_scale", "loss_mask",
                 "weight")
MASKED_MARKS = ("mask", "masked")
PART_MARKS = ("train_detail", "training_detail")  # marks on pieces of a turn (Axolotl)

# untrained: the numbers of the messages that are context only; unused: texts of the row that no
# message contains ("system"); is_plain: a prompt and its completion as text, without a template.
Conversation = namedtuple("Conversation",
                          "messages tools fingerprint replaced untrained unused is_plain")


def parse(content, form=None, renamed=None):
    """The conversation of a row, whose form is recognised where `form` does not name it.
    renamed: what the row calls a key -> what it is called here."""
    row = _row(content)
    if renamed:
        row = _renamed(row, renamed)
    _check_row(row)
    turns, untrained_before = _turns(row)
    if form is None:
        form = _form(row, turns)
    if form == "alpaca":
        messages, marks = _alpaca(row), {}
    elif form == "completion":
        messages, marks = _completion(row), {}
    else:
        if turns is None:
            raise LeftOut(NO_FORM, f"it has no list under {' or '.join(TURN_KEYS)}")
        found = [_said_by(turn) if form == "sharegpt" else _message(turn) for turn in turns]
        marks = {number: _is_trained(turn) for number, turn in enumerate(turns)}
        marks.update((number, False) for number in range(untrained_before))
        messages = found
    systems = _systems(row)
    if systems and (not messages or messages[0]["role"] != "system"):
        messages = [{"role": "system", "content": systems[0]}, *messages]
        marks = {number + 1: trained for number, trained in marks.items()}
    unused = frozenset("system" for text in systems if text != messages[0]["content"])
    untrained = frozenset(number for number, trained in marks.items() if not trained)
    tools = _tools(row, "tools") or _as_tools(_tools(row, "functions"))
    _check_assistant(messages, untrained)
    is_plain, replaced = form == "completion", False
    try:
        fingerprint = _fingerprint(messages, tools)
    except UnicodeEncodeError:  # JSON can hold halves of characters, which are no Unicode text
        messages, tools, replaced = _whole_characters(messages), _whole_characters(tools), True
        fingerprint = _fingerprint(messages, tools)
    return Conversation(messages, tools, fingerprint, replaced, untrained, unused, is_plain)


def _row(content):
    if not isinstance(content, bytes):
        return _without_nan(_plain(content))
    try:
        row = read_json(content)
    except ValueError as error:
        raise LeftOut(NOT_JSON, str(error)) from error
    if isinstance(row, list) and row and isinstance(row[0], dict):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise LeftOut(NO_FORM, "it is no JSON object")
    return _without_nan(row)


def _without_nan(record):
    """pandas writes what is missing as NaN."""
    return {key: None if value != value else value for key, value in record.items()}


def _renamed(row, renamed):
    """Keys of the row and, where they are a message's, of its turns."""
    row = _with_names(row, renamed)
    of_turns = {theirs: ours for theirs, ours in renamed.items() if ours in MESSAGE_KEYS}
    for key in (*TURN_KEYS, "prompt", "completion") if of_turns else ():
        turns = _turn_list(row.get(key))
        if turns is not None:
            row[key] = [_with_names(turn, of_turns) if isinstance(turn, dict) else turn
                        for turn in turns]
    return row


def _with_names(row, renamed):
    hidden = hidden_names(row, renamed)
    return {renamed.get(key, key): value for key, value in row.items() if key not in hidden}


def hidden_names(names, renamed):
    """Those whose place a renamed one takes: what the user maps is preferred."""
    taken = {renamed[name] for name in names if name in renamed}
    for same in SAME_MEANING:
        if taken & set(same):
            taken.update(same)
    return {name for name in names if name in taken and name not in renamed}


def _check_row(row):
    for key in VERDICT_KEYS:
        if _is_false(row.get(key)):
            raise LeftOut(REJECTED, f"'{key}' is {json.dumps(row[key])}")
    _check_weight(row.get(WEIGHT_KEY))
    for key in MEDIA_KEYS:
        if row.get(key) not in (None, "", [], False):
            raise LeftOut(NOT_TEXT, f"it comes with '{key}', and only text can be trained on")


def _check_weight(value):
    """A row's weight, which CSV has as text; what is no number is another column of that name."""
    try:
        weight = float(value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return
    except OverflowError:  # an integer beyond any float
        weight = float("inf")
    if weight == 0:
        raise LeftOut(UNTRAINED, f"the row's '{WEIGHT_KEY}' is 0")
    if weight not in (None, 1) and weight == weight:
        raise LeftOut(WEIGHED, f"the row's '{WEIGHT_KEY}' is {json.dumps(value)[:40]}")


def _is_false(value):
    """Also as a number, and as CSV has it."""
    if isinstance(value, str):
        return value.strip().lower() in ("false", "0", "0.0")
    return isinstance(value, (bool, int, float)) and value == 0


def _from_json(value):
    """Lists and objects that were written as text, as many data sets have them."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return read_json(value)
        except ValueError:
            return value
    return value


def _fingerprint(messages, tools):
    """What a conversation is told from others by; the template has no part in it."""
    text = json.dumps([messages, tools], ensure_ascii=False, sort_keys=True)
    text.encode()
    return text


def _plain(value):
    """What Arrow gives, as JSON would have: a column's structs all have the same keys, so a key
    that a row did not have is there and null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()
                if item is not None or key == "content"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _whole_characters(value):
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return [_whole_characters(item) for item in value] if isinstance(value, list) else value


# --- turns ---------------------------------------------------------------------------------------

def _turns(row):
    """The list of turns, and how many of its first are context only."""
    found = None
    for key in TURN_KEYS:
        turns = _turn_list(row.get(key))
        if turns:
            return turns, 0
        found = turns if found is None else found
    if found is not None:
        return found, 0
    prompt, completion = _turn_list(row.get("prompt")), _turn_list(row.get("completion"))
    if prompt is None or completion is None:
        return None, 0
    return prompt + completion, len(prompt)


def _turn_list(turns):
    turns = _from_json(turns)
    if isinstance(turns, dict) and turns and all(isinstance(column, list)
                                                 for column in turns.values()):
        # A list of structs that was saved as a struct of lists.
        if len(set(map(len, turns.values()))) > 1:
            raise LeftOut(NO_FORM, f"its lists of {' and '.join(turns)} differ in length")
        turns = [dict(zip(turns, values)) for values in zip(*turns.values())]
    if not isinstance(turns, list):
        return None
    turns = map(_from_json, turns)
    return [_without_nan(turn) if isinstance(turn, dict) else turn for turn in turns]


def _form(row, turns):
    if turns is not None:
        for form, key in (("sharegpt", "from"), ("messages", "role")):
            if all(isinstance(turn, dict) and key in turn for turn in turns):
                return form
        raise LeftOut(NO_FORM, _odd_turn(turns))
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        return "alpaca"
    if isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str):
        return "completion"
    for key in TURN_KEYS:
        if row.get(key) is not None:
            raise LeftOut(NO_FORM, f"'{key}' is no list of turns")
    if "chosen" in row and "rejected" in row:
        raise LeftOut(NO_FORM, "it is a pair of a chosen and a rejected answer")
    has = [str(key) for key, value in row.items() if value is not None]
    raise LeftOut(NO_FORM, f"it has {', '.join(has) or 'nothing'}")


def _odd_turn(turns):
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict):
            return f"turn {number + 1} is no JSON object"
        if "role" not in turn and "from" not in turn:
            return f"turn {number + 1} has neither 'role' and 'content' nor 'from' and 'value'"
    return "some of its turns have 'role' and others 'from'"


def _message(turn):
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise LeftOut(NO_FORM, "a message without 'role'")
    message = {key: value for key, value in turn.items() if value is not None}
    role = turn["role"].strip().lower()
    message["role"] = SPEAKERS.get(role, role)
    if message["role"] == "function_call":
        return _call_of(message.get("content", message.get("value")))
    if "content" not in message and "value" in message:
        message["content"] = message.pop("value")
    if "content" in message:
        message["content"] = _text(message["content"])
    elif message["role"] != "assistant":
        raise LeftOut(NO_FORM, f"a message of '{turn['role']}' without 'content'")
    calls = _calls(message.pop("tool_calls", None)) + _old_call(message.pop("function_call", None))
    if calls:
        message["tool_calls"] = calls
        if "content" in turn:  # null is what templates look for in a turn that only calls
            message.setdefault("content", None)
    return message


def _said_by(turn):
    """A message of a ShareGPT turn."""
    name = turn.get("from") if isinstance(turn, dict) else None
    role = SPEAKERS.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise LeftOut(NO_FORM, f"a turn from '{name}'; known are {', '.join(SPEAKERS)}")
    value = turn.get("value", turn.get("content"))
    if value is None:
        raise LeftOut(NO_FORM, f"a turn from '{name}' without 'value'")
    if role == "function_call":
        return _call_of(value)
    return {"role": role, "content": _text(value)}


def _is_trained(turn):
    """What the data say about a turn."""
    for key in PART_MARKS:
        if turn.get(key):
            raise LeftOut(WEIGHED, f"'{key}' is {json.dumps(turn[key])[:40]}")
    for keys, trained in ((TRAINED_MARKS, True), (MASKED_MARKS, False)):
        for key in keys:
            value = turn.get(key)
            if value is None:
                continue
            if isinstance(value, (list, dict, str)) or value not in (0, 1):
                raise LeftOut(WEIGHED, f"'{key}' is {json.dumps(value)[:40]}")
            if bool(value) != trained:
                return False
    return True


def _text(content):
    if isinstance(content, str):
        return content
    content = [content] if isinstance(content, dict) and "type" in content else content
    if not isinstance(content, list):
        raise LeftOut(NOT_TEXT, f"it is of type {type(content).__name__}")
    return "".join(map(_part, content))


def _part(part):
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    text = part.get("text", part.get("value")) if kind == "text" else None
    if not isinstance(text, str):
        raise LeftOut(NOT_TEXT, f"a part of type '{kind}', and only text can be trained on")
    return text


# --- calls of tools ------------------------------------------------------------------------------

def _calls(calls):
    calls = _from_json(calls)
    if not calls:
        return []
    if not isinstance(calls, list):
        raise LeftOut(NO_FORM, "'tool_calls' is no list")
    return [_call(call) for call in calls]


def _call(call):
    call = _from_json(call)
    function = _from_json(call.get("function")) if isinstance(call, dict) else None
    if isinstance(call, dict) and function is None:
        function = {key: value for key, value in call.items() if key not in ("id", "type")}
        call = {key: value for key, value in call.items() if key in ("id", "type")}
        call.setdefault("type", "function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise LeftOut(NO_FORM, "a call of a tool without a name")
    return {**call, "function": function}


def _old_call(call):
    """What OpenAI's messages had before tool_calls."""
    return [] if not call else [_call({"type": "function", "function": call})]


def _call_of(value):
    """A turn that is nothing but calls, written as JSON."""
    found = _from_json(value)
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) for call in calls):
        raise LeftOut(NO_FORM, "a turn that calls a tool and is not JSON")
    return {"role": "assistant", "content": None, "tool_calls": [_call(call) for call in calls]}


def _tools(row, key):
    tools = row.get(key)
    if isinstance(tools, str):  # as many data sets have them: the schemas' types differ
        try:
            tools = read_json(tools) if tools.strip() else None
        except ValueError as error:
            raise LeftOut(NO_FORM, f"'{key}' is not JSON: {error}") from error
    if isinstance(tools, list):
        tools = [_from_json(tool) for tool in tools]
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise LeftOut(NO_FORM, f"'{key}' is no list of objects")
    return tools or None  # templates ask whether there are any by comparing with none


def _as_tools(functions):
    """Converts functions, OpenAI's older form of tools."""
    return functions and [
        each if isinstance(each.get("function"), dict) else {"type": "function", "function": each}
        for each in functions]


# --- questions and answers -----------------------------------------------------------------------

def _alpaca(row):
    for key in ("instruction", "output"):
        if not isinstance(row.get(key), str):
            raise LeftOut(NO_FORM, f"no text under '{key}'")
    given = row.get("input")
    if given is not None and not isinstance(given, str):
        raise LeftOut(NO_FORM, "what is under 'input' is not text")
    asked = "\n\n".join(text for text in (row["instruction"], given) if text and text.strip())
    messages = []
    for pair in _history(row.get("history")):
        messages += _asked(*pair)
    return messages + _asked(asked, row["output"])


def _completion(row):
    """A prompt and its completion, which follow each other as they are."""
    for key in ("prompt", "completion"):
        if not isinstance(row.get(key), str):
            raise LeftOut(NO_FORM, f"no text under '{key}'")
    for key in (*SYSTEM_KEYS, "tools", "functions", "history"):
        if row.get(key):
            raise LeftOut(NO_FORM, f"'{key}' with a prompt that is text: without a template it has "
                                   "no place; --map prompt=instruction,completion=output uses the "
                                   "template")
    return _asked(row["prompt"], row["completion"])


def _history(history):
    """Earlier questions and answers."""
    pairs = _from_json(history) or []
    if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and
            all(isinstance(text, str) for text in pair) for pair in pairs):
        raise LeftOut(NO_FORM, "'history' is no list of pairs of a question and its answer")
    return pairs


def _asked(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _systems(row):
    texts = [(key, row[key]) for key in SYSTEM_KEYS if row.get(key)]
    for key, text in texts:
        if not isinstance(text, str):
            raise LeftOut(NOT_TEXT, f"'{key}' is of type {type(text).__name__}")
    return [text for _, text in texts]


def _check_assistant(messages, untrained):
    turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        raise LeftOut(NO_ASSISTANT)
    turns = [messages[number] for number in turns if number not in untrained]
    if not turns:
        raise LeftOut(UNTRAINED)
    if any(not (turn.get("content") or "").strip() and not turn.get("tool_calls")
           for turn in turns):
        raise LeftOut(EMPTY_TURN)
