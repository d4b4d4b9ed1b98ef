"""The reasons for which a conversation is skipped, and the exception that carries one."""

NOT_JSON = "not JSON"
NO_FORM = "in none of the known forms"
NOT_TEXT = "content that is not text"
NO_ASSISTANT = "no assistant turn"
EMPTY_TURN = "an empty assistant turn"
UNTRAINED = "no assistant turn is marked to be trained on"
WEIGHED = "a turn or row weighed by its data with neither 0 nor 1"
REJECTED = "an answer that its data reject"


class LeftOut(Exception):
    """A reason to count by, and a detail about this conversation."""

    def __init__(self, reason, detail=""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
