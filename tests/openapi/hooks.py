"""What the property tester can't know by itself: lines of JSON, and what only the daemon's configuration says."""

import json
import zlib

import schemathesis

LINES = "application/x-ndjson"


@schemathesis.deserializer(LINES)
def lines(ctx, response):
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.hook
def before_call(ctx, case, kwargs):
    if not case.meta or not case.meta.generation.mode.is_positive:
        return
    # The names of profiles are the configuration's, and the test has none of its own.
    if isinstance(case.body, dict) and case.body.get("profile") is not None:
        case.body["profile"] = "local"
    # Every other replay is asked for as lines, and the same ones each time.
    if case.operation.label == "POST /v1/replays" and zlib.crc32(repr(case.body).encode()) % 2:
        case.headers["accept"] = LINES
