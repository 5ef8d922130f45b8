"""The forms in which a model is asked to answer."""

from typing import Literal

AnswerForm = Literal["structured", "grade"]
