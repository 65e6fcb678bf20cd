"""The one error tree: what went wrong, where, and what to do next, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass


class KallaError(Exception):
    """Everything Kalla raises on purpose."""

    status = 500
    title = "Kalla could not do this"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with what a user said: the field, a sentence about it, and where there is
    something to say, the offending value and what to write instead.
    """

    field: str
    message: str
    value: object = None
    suggestion: str = ""

    def __str__(self) -> str:
        said = f"{self.field}: {self.message}" if self.field else self.message
        return said + (f" ({self.suggestion})" if self.suggestion else "")


class InvalidInput(KallaError):
    """What the user said cannot be carried out; every problem is named at once."""

    status = 422
    title = "The input is not valid"

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[Problem, ...]]:
        """Made of its problems again where it is unpickled: kernels raise it on executors."""
        return type(self), self.problems


class InvalidSettings(InvalidInput):
    """A setting in kalla.toml or KALLA_* is wrong."""

    title = "The settings are not valid"


class MissingSource(InvalidInput):
    """A source does not exist where it was looked for; elsewhere, or later, it may."""


class NotFound(KallaError):
    status = 404
    title = "Not found"


class Conflict(KallaError):
    """The thing exists, but its state does not allow what was asked."""

    status = 409
    title = "The current state does not allow this"


class NotAuthenticated(KallaError):
    status = 401
    title = "A token is needed"


class NotAllowed(KallaError):
    status = 403
    title = "The token's role does not allow this"


class Unavailable(KallaError):
    """A server that Kalla needs is not available; the same call may succeed later."""

    status = 503
    title = "A part of the system is not available"


class VersionSkew(Unavailable):
    """Another part is of a version that does not work with this one: an upgrade, perhaps."""

    title = "Two parts of the system are of different versions"


class BrokeOff(Unavailable):
    """A server was there when the work began and went under it: the work may be the reason."""


class StartFailed(KallaError):
    """A server of `kalla up` did not start; the sentence says why and what to do."""


class NotInstalled(StartFailed):
    """What a server is made of is not on this machine."""


class Permanent(KallaError):
    """Raised by a handler when trying again cannot help: the job fails at once."""


class Cancelled(KallaError):
    """Raised inside a handler when its job was cancelled, taken away or handed back."""


class Lost(KallaError):
    """The claim or lease is no longer ours: drop the result."""
