"""The exceptions a user can meet: each message is one sentence that names argument, value and fix."""


class InvalidInput(ValueError):
    """An argument that cannot be used; the message names the argument, its value and the fix."""


class NoClosedForm(InvalidInput):
    """The task has no closed form; the message names the condition that fails and what to use instead."""


class FileProblem(InvalidInput):
    """A file or folder that is missing, exists already, is truncated, or was not written by flowsim."""
