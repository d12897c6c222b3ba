"""Errors a user can act on; each names what is wrong, where, and the remedy.

The command line maps every class to one exit code (``rankprobe.cli.exit_codes``); library callers catch
:class:`RankprobeError`.
"""


class RankprobeError(Exception):
    """Base of all errors raised on purpose. ``str(error)`` is one line: place, cause, remedy."""


class UsageError(RankprobeError):
    """The call contradicts itself or the data's shape (wrong option, head out of range)."""


class DataError(RankprobeError):
    """A file or array cannot be used as it is (missing, not HDF5, disagreeing shapes, NaN)."""


class MissingDependencyError(RankprobeError):
    """An optional dependency is needed; the message holds the install line."""
