"""Shortens long polls: other tests cover wait_ms, and here it would only take time."""

import schemathesis

SHORT_MS = 20
# The server must reject longer ones, so they are not shortened.
LONGEST_MS = 60_000


def shorten(part):
    if not isinstance(part, dict) or "wait_ms" not in part:
        return
    try:
        wait_ms = int(part["wait_ms"])
    except (TypeError, ValueError, OverflowError):
        return
    if SHORT_MS < wait_ms <= LONGEST_MS:
        part["wait_ms"] = type(part["wait_ms"])(SHORT_MS)


@schemathesis.hook
def before_call(context, case, **kwargs):
    shorten(case.query)
    shorten(case.body)
