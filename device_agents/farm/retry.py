"""The whole retry policy of the agent: what is tried again, how often, and how long it waits.

| call                    | attempts  | waits                                    |
|-------------------------|-----------|------------------------------------------|
| enrol                   | for ever  | 1 s doubling to 60 s, full jitter        |
| lease (the idle loop)   | for ever  | 1 s doubling to 15 s, full jitter        |
| download                | 5         | 0.5 s doubling to 10 s, from the start   |
| events                  | for ever while the run lasts, once more at its end | 0.5 s doubling to 10 s |
| heartbeat               | for ever, each interval | the interval, one try each |
| refusal                 | 5, then the lease runs out               | 0.5 s doubling to 10 s |
| checkpoint              | 5, then the next one                       | 0.5 s doubling to 10 s |
| weights and report      | 5, then the spool; again before each lease         | 0.5 s doubling to 10 s |

`Retry-After` of an answer replaces the computed wait, up to 120 s. A 401 renews the credential once per call and is not
counted. 409 and other 4xx are never tried again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from device_agents.errors import Busy, FarmError, Unreachable
from device_agents.farm.trouble import Trouble

T = TypeVar("T")
Sleep = Callable[[float], object]
"""Waits so many seconds; what it gives back says whether it was woken before."""

MAX_RETRY_AFTER_S = 120.0


@dataclass(frozen=True)
class Policy:
    """The number and the patience of retries. `attempts` None: for ever."""

    attempts: int | None
    first_s: float
    most_s: float
    factor: float = 2.0


ENROL = Policy(None, 1.0, 60.0)
LEASE = Policy(None, 1.0, 15.0)
REFUSED_S = 60.0
"""Seconds before the next request for work after the farm has said no."""
DOWNLOAD = Policy(5, 0.5, 10.0)
EVENTS = Policy(None, 0.5, 10.0)
UPLOAD = Policy(5, 0.5, 10.0)


def is_worth_retrying(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, (Unreachable, Busy))


def waits_s(policy: Policy, rng: random.Random | None = None) -> Iterator[float]:
    """The waits between attempts: exponential, with full jitter but never under a tenth of the step."""
    rng = rng or random.Random()
    ceiling_s, attempt = policy.first_s, 1
    while policy.attempts is None or attempt < policy.attempts:
        yield rng.uniform(0.1 * ceiling_s, ceiling_s)
        ceiling_s, attempt = min(policy.most_s, ceiling_s * policy.factor), attempt + 1


def wait_after(error: FarmError, computed_s: float) -> float:
    """The wait that the farm asked for, else the computed one."""
    if error.retry_after_s is None:
        return computed_s
    return min(MAX_RETRY_AFTER_S, max(computed_s, error.retry_after_s))


def call(policy: Policy, action: Callable[[], T], *, sleep: Sleep = time.sleep, trouble: Trouble | None = None) -> T:
    """Calls `action` until it succeeds, the policy is used up, or the error is not worth retrying (then raised).

    `sleep` may end early (an `Event.wait`): a true answer means that the caller wants to stop, and the error is raised.
    `trouble` reports failures that are tried again, and their end.
    """
    waits = waits_s(policy)
    while True:
        try:
            answer = action()
        except FarmError as error:
            wait_s = next(waits, None)
            if wait_s is None or not is_worth_retrying(error):
                raise
            if trouble is not None:
                trouble.begin(error)
            if sleep(wait_after(error, wait_s)):
                raise
        else:
            if trouble is not None:
                trouble.end()
            return answer
