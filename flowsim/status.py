"""The status of one lane of a result."""

import enum


class Status(enum.IntEnum):
    """How a lane ended; `message` is the sentence a user reads.

    Values are stored as integers in trajectories and files, so existing ones never change their number.
    """

    OK = 0
    ILL_CONDITIONED = 1
    INACCURATE = 2
    MAX_STEPS = 3
    DIVERGED = 4
    NOT_FINITE = 5
    UNREACHABLE = 6
    INTERRUPTED = 7

    @property
    def message(self) -> str:
        """One sentence saying what happened to the lane and what to do about it."""
        return _MESSAGES[self]

    @property
    def usable(self) -> bool:
        """Whether the lane's numbers may be used (possibly with the loss of accuracy that the message states)."""
        return self in (Status.OK, Status.ILL_CONDITIONED, Status.INTERRUPTED)


_MESSAGES = {
    Status.OK: "solved to the stated accuracy",
    Status.ILL_CONDITIONED: (
        "solved, but the answer is ill-conditioned: rounding the time to float64 moves the margin by more than the "
        "stated accuracy; index by margins= or losses= instead"
    ),
    Status.INACCURATE: "the error estimate exceeds the tolerance; ask for more steps or a larger tol",
    Status.MAX_STEPS: (
        "the solver used all its steps before the last time; shorten the horizon, use the closed form, or raise "
        "max_steps of flowsim.integrate"
    ),
    Status.DIVERGED: "training diverged; lower lr (or the ratio)",
    Status.NOT_FINITE: "a value that is not finite appeared; the lane's later values are NaN",
    Status.UNREACHABLE: "the trajectory never reaches the requested value; ask for one beyond the start",
    Status.INTERRUPTED: "interrupted before the last step; what was recorded until then is there",
}
