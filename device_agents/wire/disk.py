"""The one definition of a full disk: an error that says so, of the disk, a quota or a limit of files."""

import errno

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether room is what was wanting."""
    return error.errno in FULL_ERRNOS
